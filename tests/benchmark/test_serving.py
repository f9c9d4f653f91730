"""The benchmark runs, and batches change no answer. No times are asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from scaling import only_in_full

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "serving.py"


@only_in_full
def test_runs(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--quick", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    turns = json.loads((tmp_path / "serving.json").read_text())["turns"]
    assert {name: len(each) for name, each in turns.items()} == {"towerpack": 2, "unbatched": 2}
