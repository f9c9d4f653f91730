"""Several replicas: averages, randomness, the end of data, checkpoints; and deterministic runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("replicas_program.py")


def test_on_two_devices(tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAM), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert len(done.stdout.splitlines()) == 2 * 19
