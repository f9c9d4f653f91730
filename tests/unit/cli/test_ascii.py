"""Terminals and pipes that take ASCII only."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from towerpack.checkpoint import CheckpointStore
from towerpack.cli import main

RECIPE = """
from towerpack.dataflow import BatchData, DataFromList, MapData

def flow():
    ds = DataFromList([(i, "smörgåsbord " * 20) for i in range(8)])
    return BatchData(MapData(ds, lambda x: x), 4)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ascii")
    (path / "recipe.py").write_text(RECIPE)
    with CheckpointStore(path / "run" / "checkpoints") as store:
        store.save(7, {"model": {"fc/kernel": np.ones((2, 3))}}, {"text": "é" * 200})
    return path


@pytest.fixture
def towerpack(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], tuple[Any, ...]]:
    """Run a command here; its exit code, output and errors."""
    monkeypatch.chdir(folder)

    def run(command: str) -> tuple[Any, ...]:
        out, err = (io.TextIOWrapper(io.BytesIO(), "ascii") for _ in range(2))
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["towerpack", *command.split()])
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            with pytest.raises(SystemExit) as ended:
                main()
        for stream in (out, err):
            stream.seek(0)
        return ended.value.code or 0, out.read(), err.read()

    return run


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("doctor --no-tensorflow", "+  numpy"),
        ("ckpt show run", "2 x 3"),
        ("data inspect recipe.py:flow", "sm?rg?sbord"),
        ("data profile recipe.py:flow --seconds 0.1", "us each"),
        ("--help", "doctor"),
    ],
)
def test_output_is_readable(towerpack: Any, command: str, shown: str) -> None:
    code, out, err = towerpack(command)
    assert (code, err) == (0, "")
    assert shown in out
    assert "\\u" not in out


def test_errors_too(towerpack: Any) -> None:
    code, _, err = towerpack("data inspect kött.py:flow")
    assert code == 1
    assert "k?tt.py" in err
    assert "Traceback" not in err
