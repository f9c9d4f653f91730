"""Rows of the benchmark run, and the report and the plot are written. No times are asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from scaling import only_in_full

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "growth.py"
ROWS = ["source", "checkpoints_resume", "runs", "stats_resume", "lmdb", "pictures_import"]


@only_in_full
def test_runs(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--quick", "--only", *ROWS, "--out", str(tmp_path)]
    command += ["--plot", str(tmp_path / "growth.png")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "growth.json").read_text())["rows"]
    assert sorted(rows) == sorted(ROWS)
    assert (tmp_path / "growth.png").stat().st_size > 1000
