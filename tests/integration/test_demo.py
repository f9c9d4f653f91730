"""The main job on its embedded default, as a user starts it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from scaling import SCALE
from towerpack.checkpoint import list_checkpoints
from warm_python import warm_python

# With `make test` a fifth of the epochs: `towerpack demo` takes no such setting.
SHORTER = """
import towerpack.apps
from towerpack.cli import app
find = towerpack.apps.find_recipe
towerpack.apps.find_recipe = lambda name, settings: find(name, [*settings, "train.epochs=3"])
app(["demo"])
"""


def demo(directory: Path) -> str:
    command = ["-m", "towerpack", "demo"] if SCALE == 1 else ["-c", SHORTER]
    done = subprocess.run(
        [*warm_python(children=True), *command],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert ".cc:" not in done.stderr  # TensorFlow's own lines are in the run's log
    return done.stdout


@pytest.mark.timeout(600)
def test_demo_learns_serves_and_knows_when_it_is_complete(tmp_path: Path) -> None:
    said = demo(tmp_path)
    accuracy = re.search(r"Test accuracy ([\d.]+) %", said)
    assert accuracy
    assert float(accuracy[1]) >= (98.5 if SCALE == 1 else 90)
    run_dir = tmp_path / "runs" / "demo"
    for name in ("infer/contact-sheet.png", "eval-test/confusion.png", "export/saved_model/1"):
        assert f"runs/demo/{name}" in said
        assert (run_dir / name).exists()
    assert re.search(r"Served at http://127\.0\.0\.1:\d+: 00-a-(\d)\.png is a \1 ", said)

    rows = list_checkpoints(run_dir)
    assert all(row.valid for row in rows)
    assert [row.tag for row in rows].count("best-val/cost") == 1

    if SCALE < 1:
        return
    again = demo(tmp_path)
    assert "already complete" in again
    assert f"Test accuracy {accuracy[1]} %" in again
    assert [row.step for row in list_checkpoints(run_dir)] == [row.step for row in rows]
