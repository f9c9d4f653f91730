"""Several replicas: averages, randomness, the end of data, checkpoints; and deterministic runs."""

from __future__ import annotations

import subprocess
from pathlib import Path

from scaling import scaled
from warm_python import warm_python

PROGRAM = Path(__file__).with_name("replicas_program.py")


def test_on_two_devices(tmp_path: Path) -> None:
    command = [*warm_python(), str(PROGRAM), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    cases = 17 + scaled(3)
    assert len(done.stdout.splitlines()) == cases + scaled(cases)
