"""The benchmark runs, and all contenders train the same problem. No times are asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scaling import only_in_full

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "training_overhead.py"


@only_in_full
@pytest.mark.parametrize(("case", "apart"), [("mlp", 0.4), ("lenet", 0.8)])
def test_all_contenders_train(tmp_path: Path, case: str, apart: float) -> None:
    command = [sys.executable, str(SCRIPT), "--quick", "--without-tensorpack", "--case", case]
    done = subprocess.run([*command, "--out", str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    turns = json.loads((tmp_path / "training_overhead.json").read_text())["turns"][case]
    losses = {name: own[-1]["loss"] for name, own in turns.items()}
    assert {"hand-1", "hand-50", "towerpack", "keras-fit"} <= set(losses)
    assert max(losses.values()) < 2.0, losses  # ln 10 = 2.3 is chance
    assert max(losses.values()) - min(losses.values()) < apart, losses
    assert "steps/s" in (tmp_path / "training_overhead.md").read_text()
