"""Every layer in one model: two replicas, checkpoints, predictions."""

from __future__ import annotations

import subprocess
from pathlib import Path

from warm_python import warm_python

PROGRAM = Path(__file__).with_name("every_layer_program.py")


def test_every_layer_trains_resumes_and_predicts(tmp_path: Path) -> None:
    command = [*warm_python(), str(PROGRAM), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
