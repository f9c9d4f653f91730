"""Fixes of messages that users of recipes see: they name a setting, an option or a command."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import towerpack
from towerpack import TowerpackError
from towerpack.apps import APPLICATIONS
from towerpack.cli import app
from towerpack.cli._wording import in_commands
from towerpack.config import Config

ROOT = Path(towerpack.__file__).parent
TASKS = (
    *("classification", "segmentation", "detection"),
    *("style_transfer", "text_classification", "text_generation"),
)
# What only a change of the user's files can repair, or only the log of a worker tells.
REPAIRS = {
    "measure boxes on the picture as it is, or leave its width and height out",
    "add a label, or remove the row",
    "see the errors in NAME/worker-*.log",
}
VERBS = {
    *("add", "choose", "correct", "enclose", "end", "escape", "leave", "list", "measure", "move"),
    *("name", "number", "pass", "remove", "restore", "run", "save", "see", "set", "start", "try"),
    "write",
}
# Modules of commands that read recipes; other commands take programs and files.
OF_RECIPES = re.compile(
    r"apps/|cli/_(recipe|train|eval|infer|recipes|data_import|export|serve|tune)\.py"
)


def texts_of(node: ast.expr, file: ast.Module) -> list[str]:
    """Return the texts that an expression may give; unknown values are shown as NAME.

    Names are followed to their assignments in the file, and calls to what its functions return.
    """
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.Constant(value=None):
            return []
        case ast.IfExp(body=body, orelse=orelse):
            return [*texts_of(body, file), *texts_of(orelse, file)]
        case ast.BinOp(left=left, right=right):
            return [a + b for a in texts_of(left, file) for b in texts_of(right, file)]
        case ast.JoinedStr(values=parts):
            found = [""]
            for part in parts:
                inner = part.value if isinstance(part, ast.FormattedValue) else part
                texts = texts_of(inner, file) if is_known(inner, file) else ["NAME"]
                found = [text + more for text in found for more in texts]
            return found
        case ast.Name(id=name):
            return [t for value in assigned(name, file) for t in texts_of(value, file)]
        case ast.Call(func=ast.Name(id="did_you_mean")):
            return []  # The sentence names what is known in the place of a wrong name.
        case ast.Call(func=ast.Name(id=name)):
            found = [f for f in ast.walk(file) if isinstance(f, ast.FunctionDef) and f.name == name]
            assert found, f"{ast.unparse(node)} is not a function of the same file"
            returned = [
                n.value for n in ast.walk(found[0]) if isinstance(n, ast.Return) and n.value
            ]
            return [text for value in returned for text in texts_of(value, file)]
    raise AssertionError(f"The fix {ast.unparse(node)} cannot be followed.")


def assigned(name: str, file: ast.Module) -> list[ast.expr]:
    """Return what a file assigns to a name."""
    assignments = [node for node in ast.walk(file) if isinstance(node, ast.Assign)]
    values = [
        (target, value)
        for node in assignments
        for target, value in (
            zip(node.targets[0].elts, node.value.elts, strict=True)
            if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple)
            else [(node.targets[0], node.value)]
        )
    ]
    return [value for target, value in values if isinstance(target, ast.Name) and target.id == name]


def is_known(node: ast.expr, file: ast.Module) -> bool:
    """Whether an expression is one of a few texts."""
    if isinstance(node, ast.Name):
        values = assigned(node.id, file)
        return bool(values) and all(is_known(value, file) for value in values)
    if isinstance(node, ast.IfExp):
        return is_known(node.body, file) and is_known(node.orelse, file)
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def fixes() -> Iterator[tuple[str, str]]:
    """Yield the place and the text of each fix in the applications and commands."""
    for folder in ("apps", "cli"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            file = ast.parse(path.read_text("utf-8"))
            values = [
                node.value
                for node in ast.walk(file)
                if isinstance(node, ast.keyword) and node.arg == "fix"
            ]
            values += [
                node.args[2]
                for node in ast.walk(file)
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "direction_of"
            ]
            for value in values:
                where = f"{path.relative_to(ROOT).as_posix()}:{value.lineno}"
                yield from ((where, text) for text in texts_of(value, file))


def settings_of(config: type[Config], prefix: str = "") -> Iterator[str]:
    for name, field in config.model_fields.items():
        yield f"{prefix}{name}"
        if isinstance(field.annotation, type) and issubclass(field.annotation, Config):
            yield from settings_of(field.annotation, f"{prefix}{name}.")


def words_of(command: Any) -> Iterator[str]:
    """Yield the names of options, and of commands below one."""
    for parameter in command.params:
        yield from parameter.opts
    for name, inner in getattr(command, "commands", {}).items():
        yield f"towerpack {name}"
        yield from words_of(inner)


def test_a_fix_names_a_setting_or_a_command() -> None:
    known = {n for task in TASKS for n in settings_of(APPLICATIONS.get(task).config)}
    known |= {"data.NAME", "--NAME", *words_of(typer.main.get_command(app))}
    named = re.compile(
        r"\b(?:data|model|optimizer|train|transfer)\.\w+|towerpack \w+|(?<![\w-])--?[a-zA-Z-]+"
    )
    every = list(fixes())
    assert len(every) > 50
    for where, text in every:
        assert text.partition(" ")[0] in VERBS, f"{where}: {text!r} begins with no verb"
        names = set(named.findall(text))
        assert names <= known, f"{where}: {text!r} names {names - known}"
        if OF_RECIPES.match(where) and text not in REPAIRS:
            assert names, f"{where}: {text!r} names no setting and no command"


PYTHON = {
    "train with WeightEMA(optimizer, decay)": "set train.ema and train again",
    "check the list; set on_error='skip' to skip and count bad datapoints": "check the list",
    "set data.encoding to cp1252 (in Python: encoding=)": "set data.encoding to cp1252",
    "begin a new run: TrainConfig(resume='never', init='runs/a', …)": (
        "begin a new run: set transfer.pretrained=RUN and --run-dir NEW"
    ),
    "start anew: TrainConfig(resume='never', init=SmartInit(PATH, ignore_mismatch=True))": (
        "start anew: set transfer.pretrained=RUN, transfer.ignore_mismatch=true and --run-dir NEW"
    ),
}


@pytest.mark.parametrize("fix", PYTHON)
def test_commands_do_not_show_python(fix: str) -> None:
    error = TowerpackError("It failed.", fix=fix)
    in_commands(error, "train")
    assert error.fix == PYTHON[fix]
    in_commands(error, "train")
    assert error.fix == PYTHON[fix]
