"""The benchmark runs, and all contenders train the same problem. No times are asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scaling import only_in_full

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "trainers.py"
# Losses after some 20 steps: at most, and between contenders. Chance is ln 10 = 2.3, or ln 2048.
PARTS = [
    ("workers", 2.0, 0.6),
    ("replicas", 2.0, 0.6),
    ("images", 2.0, 1.0),
    ("saving", 8.0, 1e-5),
]


@only_in_full
@pytest.mark.parametrize(("part", "most", "apart"), PARTS)
def test_all_contenders_train(tmp_path: Path, part: str, most: float, apart: float) -> None:
    command = [sys.executable, str(SCRIPT), "--quick", "--without-peers", "--only", part]
    done = subprocess.run([*command, "--out", str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    turns = json.loads((tmp_path / "trainers.json").read_text())[part]["turns"]
    losses = {name: own[-1]["loss"] for name, own in turns.items()}
    assert len(losses) == 2
    assert max(losses.values()) < most, losses
    assert max(losses.values()) - min(losses.values()) < apart, losses
    assert "Towerpack ÷ it" in (tmp_path / "trainers.md").read_text()
