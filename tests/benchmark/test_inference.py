"""The benchmark runs, and both contenders compute the same. No times are asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from scaling import only_in_full

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "inference.py"


@only_in_full
def test_both_compute_the_same(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--quick", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "inference.json").read_text())
    seconds = found["seconds"]
    assert [len(turns) for own in found["threads"].values() for turns in own.values()] == [2] * 4
    assert len(seconds) == 3
    assert all(len(own) == 2 for found in seconds.values() for own in found.values())
    assert "bare `tf.function`" in (tmp_path / "inference.md").read_text()
