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
    "see NAME/worker-*.log",
}
VERBS = {
    *("add", "choose", "correct", "enclose", "end", "escape", "leave", "list", "measure", "name"),
    *("number", "pass", "remove", "restore", "run", "save", "see", "set", "start", "try", "write"),
}
# Modules of commands that read recipes; other commands take programs and files.
OF_RECIPES = re.compile(
    r"apps/|cli/_(recipe|train|eval|infer|recipes|data_import|export|serve|tune)\.py"
)


def texts_of(node: ast.expr) -> list[str]:
    """Return the texts that an expression may give; names of variables stand for their values."""
    if isinstance(node, ast.IfExp):
        return [*texts_of(node.body), *texts_of(node.orelse)]
    if isinstance(node, ast.JoinedStr):
        parts = (p.value if isinstance(p, ast.Constant) else "NAME" for p in node.values)
        return ["".join(map(str, parts))]
    return [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []


def fixes() -> Iterator[tuple[str, str]]:
    """Yield the place and the text of each fix in the applications and commands."""
    for folder in ("apps", "cli"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                if isinstance(node, ast.keyword) and node.arg == "fix":
                    where = f"{file.relative_to(ROOT).as_posix()}:{node.value.lineno}"
                    yield from ((where, text) for text in texts_of(node.value))


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
    "check the list; on_error='skip' leaves out and counts bad datapoints": "check the list",
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
