"""Public names: they resolve, and they change only on purpose.

`make public-names` runs this file as a program, which writes the list anew.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import towerpack

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "towerpack"
GOLDEN = Path(__file__).with_name("public_names.txt")
TABLES = [import_module(name) for name in ("towerpack", "towerpack.dataflow", "towerpack.training")]
IMPORTS = (ast.Import, ast.ImportFrom)
# Public modules besides packages and modules of the root. Other modules without an underscore are
# shared by packages of the library; programs import their names from the packages.
PUBLIC_MODULES = re.compile(
    r"towerpack\.(apps\.\w+\.(augmenters|data_sets|\w+_inputter)|cluster\.ray|dataflow\.(profiling|remote|testing)"
    r"|gan\.losses|nn\.summary|ops\.\w+|rl\.(a2c|dqn|math|ppo)|tf1\.layers"
    r"|training\.optim\.(gradproc|optimizer)|zoo\.\w+)"
)
# Networks, applications and functions whose modules hold few names: programs import them by name.
BY_NAME = tuple(
    f"towerpack.{n}"
    for n in ("apps.", "zoo", "ops.", "cli", "rl.a2c", "rl.dqn", "rl.ppo", "dataflow.testing")
)


def public_modules() -> list[tuple[str, Path]]:
    """Names and files of the public packages and modules."""
    found: list[tuple[str, Path]] = []
    for path in sorted(PACKAGE.rglob("*.py")):
        *parts, last = path.relative_to(PACKAGE.parent).with_suffix("").parts
        name = ".".join(parts if last == "__init__" else [*parts, last])
        known = last == "__init__" or len(parts) == 1 or PUBLIC_MODULES.fullmatch(name)
        if known and "._" not in name:
            found.append((name, path))
    return found


def public_names() -> str:
    """Every public name with its module, read from the sources without running them."""
    names = {f"towerpack.{name}" for name in [*towerpack.__all__, *names_of(towerpack)]}
    for module, path in public_modules():
        if module != "towerpack":
            stub = path.with_suffix(".pyi")
            exported = _exported(stub if stub.exists() else path)
            names |= {f"{module}.{name}" for name in exported}
    return "".join(f"{name}\n" for name in sorted(names))


def _exported(path: Path) -> set[str]:
    """The names of `__all__`, or else re-exports (`import X as X`) and public definitions."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        match node:
            case ast.Assign(targets=[ast.Name("__all__")], value=ast.List() as value):
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


def names_of(package: ModuleType) -> list[str]:
    """Every name that a package with a stub has by itself or loads when it is asked for."""
    return sorted(_exported(Path(str(package.__file__)).with_suffix(".pyi")))


@pytest.mark.parametrize(
    "name",
    [
        "remap_variables of towerpack, towerpack.nn, towerpack.tower",
        "freeze_variables of towerpack, towerpack.nn, towerpack.tower",
        "TowerFunction of towerpack, towerpack.tower, towerpack.training",
        "ExportError of towerpack, towerpack.inference",
    ],
)
def test_names_are_in_every_place_where_one_looks_for_them(name: str) -> None:
    name, _, modules = name.partition(" of ")
    assert len({getattr(import_module(m), name) for m in modules.split(", ")}) == 1


def test_list_is_pinned() -> None:
    assert GOLDEN.read_text() == public_names(), "if you meant it: make public-names"


@pytest.mark.parametrize("package", TABLES)
def test_names_resolve(package: ModuleType) -> None:
    assert set(package.__all__) <= set(dir(package))
    for name in [*names_of(package), *package.__all__]:
        assert getattr(package, name) is not None
        assert name in dir(package)


@pytest.mark.parametrize("package", TABLES)
def test_no_name_has_two_homes(package: ModuleType) -> None:
    stub = Path(str(package.__file__)).with_suffix(".pyi").read_text()
    assert max(Counter(re.findall(r" as (\w+)", stub)).values()) == 1


@pytest.mark.parametrize("package", TABLES)
def test_unknown_name_is_an_attribute_error(package: ModuleType) -> None:
    with pytest.raises(AttributeError, match="no attribute 'TrainConfg'"):
        _ = package.TrainConfg


def test_star_import_binds_the_everyday_names() -> None:
    namespace: dict[str, object] = {}
    exec("from towerpack import *", namespace)
    assert namespace.keys() >= set(towerpack.__all__)


def test_a_star_import_leaves_the_names_of_other_libraries_alone() -> None:
    for name, path in public_modules():
        if name.startswith(BY_NAME):
            continue
        imports = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, IMPORTS)]
        foreign = {
            (alias.asname or alias.name).partition(".")[0]
            for node in imports
            for alias in node.names
            if not getattr(node, "level", 0)
            and not str(getattr(node, "module", alias.name)).startswith("towerpack")
        }
        namespace: dict[str, object] = {}
        exec(f"from {name} import *", namespace)
        assert not foreign & namespace.keys(), name
        modules = {n for n, value in namespace.items() if isinstance(value, ModuleType)}
        assert not modules & sys.stdlib_module_names, name  # such as `rl.math`


if __name__ == "__main__":
    GOLDEN.write_text(public_names())
    print(f"Wrote {GOLDEN.relative_to(ROOT)}.")
