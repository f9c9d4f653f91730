"""Public names: they resolve, and they change only on purpose.

`make public-names` runs this file as a program, which writes both lists anew.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import towerpack

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "towerpack"
GOLDEN = Path(__file__).with_name("public_names.txt")
STUB = PACKAGE / "__init__.pyi"


def public_names() -> str:
    """Every public name with its module, read from the sources without running them."""
    names = {f"towerpack.{name}" for name in [*towerpack.__all__, *towerpack._MODULES]}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        module = parts[:-1] if parts[-1] == "__init__" else parts
        if len(module) > 1 and not any(part.startswith("_") for part in module):
            names |= {".".join([*module, name]) for name in _exported(path)}
    return "".join(f"{name}\n" for name in sorted(names))


def _exported(path: Path) -> set[str]:
    """The names of `__all__`, or else re-exports (`import X as X`) and public definitions."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        match node:
            case ast.Assign(targets=[ast.Name("__all__")], value=value):
                return set(ast.literal_eval(value))
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                found |= {alias.name for alias in aliases if alias.asname == alias.name}
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Assign(targets=[ast.Name(name)]) | ast.AnnAssign(target=ast.Name(name)):
                found.add(name)
            case _:
                pass
    return {name for name in found if not name.startswith("_")}


def stub() -> str:
    """What type checkers and editors read in place of the lazy table."""
    lines = ["# Written by `make public-names` from the table in __init__.py."]
    lines += [f"from towerpack import {module} as {module}" for module in towerpack._MODULES]
    for module, names in sorted(towerpack._NAMES.items()):
        imported = "".join(f"    {name} as {name},\n" for name in sorted(names))
        lines.append(f"from {module} import (\n{imported})")
    return "\n".join([*lines, "", "__version__: str", ""])


def test_list_is_pinned() -> None:
    assert GOLDEN.read_text() == public_names(), "if you meant it: make public-names"


def test_stub_follows_the_table() -> None:
    assert STUB.read_text() == stub(), "run: make public-names"


@pytest.mark.parametrize("name", [*towerpack.__all__, *towerpack._MODULES])
def test_name_resolves(name: str) -> None:
    assert getattr(towerpack, name) is not None
    assert name in dir(towerpack)


def test_no_name_has_two_homes() -> None:
    listed = [name for names in towerpack._NAMES.values() for name in names]
    assert len(listed) == len(set(listed))


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'TrainConfg'"):
        _ = towerpack.TrainConfg


def test_star_import_binds_the_everyday_names() -> None:
    namespace: dict[str, object] = {}
    exec("from towerpack import *", namespace)
    assert namespace.keys() >= set(towerpack.__all__)


if __name__ == "__main__":
    GOLDEN.write_text(public_names())
    STUB.write_text(stub())
    print(f"Wrote {GOLDEN.relative_to(ROOT)} and {STUB.relative_to(ROOT)}.")
