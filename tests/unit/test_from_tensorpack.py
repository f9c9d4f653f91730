"""The tables for those who come from Tensorpack: no name is left out, and what they name is there.

`tensorpack_names.txt` has the predecessor's public names, one a line. `tensorpack_signatures.txt`
has the parameters of those whose name exists here too, in the order of Tensorpack 0.11.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import inspect
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from towerpack import TowerpackError
from towerpack._core.old_arguments import ARGUMENTS
from towerpack.nn._argscope import ALIASES
from towerpack.nn._registry import RegisteredLayer

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [*sorted(DOCS.glob("from-tensorpack*.md")), DOCS / "callbacks.md", DOCS / "inference.md"]
NAMES = Path(__file__).with_name("tensorpack_names.txt").read_text().split()
# What stands in for a successor.
NONE = ("will not be", "not needed")
SPAN = re.compile(r"`([^`]+)`")
# A name, perhaps with arguments: `TrainConfig(init=…)`, `towerpack.logger.info`.
NAME = re.compile(r"([A-Za-z_][\w.]*)(?:\((.*)\))?")


class Row(NamedTuple):
    modules: list[str]
    there: str
    here: str
    names: bool  # Three columns: names, what is there, what differs. Two are about behaviour.


def rows() -> Iterator[Row]:
    """Rows of all tables, with the modules that the heading above names."""
    modules: list[str] = []
    inside = False
    for line in "\n".join(page.read_text() for page in PAGES).splitlines():
        inside = line.startswith("| there |") or (inside and line.startswith("|"))
        if line.startswith("#"):
            modules = [span for span in SPAN.findall(line) if span.startswith("towerpack")]
        elif inside and not line.startswith(("| there |", "|---", "| **")):
            there, here, *more = re.split(r"(?<!\\)\|", line)[1:-1]
            yield Row(modules, there, here, bool(more))


ROWS = list(rows())


def names_in(cell: str) -> Iterator[tuple[str, str]]:
    for span in SPAN.findall(cell):
        match = NAME.fullmatch(span)
        if match:
            yield match[1], match[2] or ""


def resolve(name: str, modules: list[str]) -> Any:
    """What a name of the page stands for."""
    first, *rest = name.split(".")
    places = [importlib.import_module(module) for module in [*modules, "towerpack"]]
    found: Any
    if first in ("towerpack", "tf", "keras", "numpy"):
        found = importlib.import_module({"tf": "tensorflow"}.get(first, first))
    else:
        homes = [place for place in [*places, builtins] if hasattr(place, first)]
        if not homes:
            raise AttributeError(f"{name} is not in {modules}")
        found = getattr(homes[0], first)
    for part in rest:
        if not hasattr(found, part) and inspect.ismodule(found):
            importlib.import_module(f"{found.__name__}.{part}")
        found = getattr(found, part)
    return found


def test_every_name_of_tensorpack_has_a_row() -> None:
    found = {name.split(".")[-1] for row in ROWS for name, _ in names_in(row.there)}
    assert not [name for name in NAMES if name not in found]


def test_what_the_page_names_is_there() -> None:
    for row in ROWS:
        for name, arguments in names_in(row.here):
            thing = resolve(name, row.modules)
            for argument in re.findall(r"(\w+)=", re.sub(r"\(.*\)", "", arguments)):
                known = inspect.signature(thing).parameters
                assert argument in known, f"{name} has no argument {argument}"
        if re.match(r"\s*the same", row.here):
            for name, _ in names_in(row.there):
                resolve(name, row.modules)
        elif row.names and not SPAN.search(row.here):
            assert row.here.strip().startswith(NONE), row


SIGNATURES = Path(__file__).with_name("tensorpack_signatures.txt").read_text().splitlines()
ALL_MODULES = [module for row in ROWS for module in row.modules]
RENAMED = {
    "download": {"url": "urls", "dir": "path"},
    # Trainers take devices in the first place, as their row on the page says.
    **{name: {"gpus": "config"} for name in NAMES if "MultiGPUTrainer" in name},
}
POSITIONAL = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD


@pytest.mark.parametrize("line", SIGNATURES, ids=lambda line: line.partition("(")[0])
def test_old_positions_keep_their_meaning_or_are_refused(line: str) -> None:
    """Each parameter that could be passed by position has its old name here, or a known alias."""
    name, _, listed = line.rstrip(")").partition("(")
    old_names = list(itertools.takewhile(lambda p: not p.startswith("*"), listed.split(", ")))
    thing = resolve(name, list(dict.fromkeys(ALL_MODULES)))
    # Of classes, Python 3.11.2 gives the signature of an inherited `__new__`.
    is_class = isinstance(thing, type)
    call: Any = thing.__init__ if is_class else thing
    parameters = list(inspect.signature(call).parameters.values())[is_class:]
    new_names = [p.name for p in parameters if p.kind in POSITIONAL]
    aliases = {"inputs": "x", **ALIASES, **ARGUMENTS.get(name, {}), **RENAMED.get(name, {})}
    for position, old in enumerate(old_names):
        if position < len(new_names) and new_names[position] in (old, aliases.get(old)):
            continue
        arguments: list[Any] = [
            "Tower2" if p in ("tower_name", "prefix") else True for p in old_names[: position + 1]
        ]
        says = "to fix|expected|positional"
        if isinstance(thing, RegisteredLayer):
            arguments, says = ["name", *arguments], "positional"
        with pytest.raises((TowerpackError, TypeError), match=says):
            with contextlib.ExitStack() as stack:
                made = thing(*arguments)
                if hasattr(made, "__enter__"):
                    stack.enter_context(made)


def test_every_successor_of_a_callback_is_tested() -> None:
    """What the tables of callbacks, monitors and predictors name is in a test or a page's code."""
    tests = [p.read_text() for p in Path(__file__).parents[1].rglob("*.py") if p != Path(__file__)]
    tests += re.findall(r"(?s)```python\n(.*?)```", "\n".join(p.read_text() for p in PAGES))
    text = "\n".join(tests)
    ours = {"towerpack.callbacks", "towerpack.callbacks.monitors", "towerpack.inference"}
    successors = {
        name
        for row in ROWS
        if ours & {*row.modules}
        and "towerpack.rl" not in row.modules
        and not row.here.strip().startswith(NONE)
        for cell in ([row.there] if row.here.strip().startswith("the same") else [row.here])
        for name, _ in names_in(cell)
    }
    assert len(successors) > 50
    untested = [n for n in successors if not re.search(rf"\b{n.split('.')[-1]}\b", text)]
    assert not untested


def test_star_imports_give_what_programs_use() -> None:
    data: dict[str, Any] = {}
    exec("from towerpack.dataflow import *", data)
    assert data["dataset"].Mnist and data["imgaug"].Flip
    everything: dict[str, Any] = {}
    exec("from towerpack import *", everything)
    assert everything["logger"].auto_set_dir and everything["summary"].add_moving_summary
    assert everything.keys() >= {"dataset", "imgaug", "launch_train_with_config", "BNReLU"}
