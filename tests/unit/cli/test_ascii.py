"""Terminals and pipes that take ASCII only."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from towerpack.checkpoint import CheckpointStore
from warm_python import warm_python

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


def towerpack(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [*warm_python(), "-m", "towerpack", *arguments]
    return subprocess.run(
        command, capture_output=True, env=environment, cwd=folder, encoding="ascii"
    )


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("doctor --no-tensorflow", "+  numpy"),
        ("ckpt ls run", "whole"),
        ("ckpt show run", "2 x 3"),
        ("data inspect recipe.py:flow", "sm?rg?sbord"),
        ("data speed recipe.py:flow --num 8", "datapoints"),
        ("data profile recipe.py:flow --seconds 0.1", "us each"),
        ("--help", "doctor"),
    ],
)
def test_output_is_readable(folder: Path, command: str, shown: str) -> None:
    done = towerpack(folder, *command.split())
    assert (done.returncode, done.stderr) == (0, "")
    assert shown in done.stdout
    assert "\\u" not in done.stdout


def test_errors_too(folder: Path) -> None:
    done = towerpack(folder, "data", "inspect", "kött.py:flow")
    assert done.returncode == 1
    assert "k?tt.py" in done.stderr
    assert "Traceback" not in done.stderr
