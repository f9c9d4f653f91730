from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from towerpack._core.errors import TowerpackError
from towerpack.checkpoint import CheckpointStore
from towerpack.cli import app

SCRIPT = """
import keras
import tensorflow as tf
from towerpack import FullyConnected, ModelDesc

class Small(ModelDesc):
    def inputs(self):
        return [tf.TensorSpec([None, 6], tf.float32, "x")]

    def build_graph(self, x):
        return tf.reduce_mean(FullyConnected("fc", x, 4))

def tuple_of_functions():
    return Small().inputs(), Small().build_graph

def broken():
    return Small().inputs(), lambda x: x / "2"
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "model_for_test.py"
    path.write_text(SCRIPT)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    yield path
    sys.modules.pop(path.stem, None)


def show(*arguments: Any) -> list[list[str]]:
    runner = CliRunner()
    done = runner.invoke(app, ["model", "show", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0
    return [line.split() for line in done.stdout.splitlines()]


@pytest.mark.parametrize("name", ["", ":Small", ":tuple_of_functions"])
def test_script(script: Path, name: str) -> None:
    picture = script.with_suffix(".svg")
    rows = show(f"{script}{name}", "--picture", picture)
    assert ["fc", "[1,", "4]", "28", "24"] in rows
    assert rows[-1] == ["total", "28", "24"]
    assert b"fc" in picture.read_bytes()


def test_module(script: Path) -> None:
    assert show("model_for_test:Small")[-1] == ["total", "28", "24"]


def test_run(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path / "checkpoints") as store:
        store.save(7, {"model": {"fc/kernel": np.zeros([6, 4], np.float32)}, "other": {}}, {})
    rows = show(tmp_path)
    assert ["fc/kernel", "[6,", "4]", "24", "96", "B"] in rows
    assert ["total", "24", "96", "B"] in rows


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("missing.py", "no file"),
        ("missing", "neither a script nor a run directory"),
        ("model_for_test.py:Smaller", "'Small'"),
        ("model_for_test.py:broken", "raised TypeError"),
        ("model_for_test.py:SPECS", "must be a ModelDesc"),
        ("several.py", "must define one model, but it defines 2"),
        ("none.py", "must define one model, but it defines none"),
    ],
)
def test_what_is_no_model(script: Path, target: str, message: str) -> None:
    script.write_text(SCRIPT + "\nSPECS = 5\n")
    script.with_name("several.py").write_text(SCRIPT + "\nclass Other(Small): pass\n")
    script.with_name("none.py").write_text("from towerpack import ModelDesc\n")
    with pytest.raises(TowerpackError, match=message):
        show(target)


def test_a_picture_of_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TowerpackError, match="script"):
        show(tmp_path, "--picture", "x.svg")
