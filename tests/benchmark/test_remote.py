"""The benchmark runs. No times are asserted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from scaling import only_in_full

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "remote.py"


@only_in_full
def test_runs() -> None:
    command = [sys.executable, str(SCRIPT), "--quick", "--only", "bytes", "batch"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert "| 1000 `bytes` and an int |" in done.stdout
    assert "| a batch of 64" in done.stdout
