"""Without a package of an extra, a sentence says what to install."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
sys.modules["{package}"] = None
try:
    {statement}
except ImportError as error:
    print(type(error).__name__, error)
"""

TENSORFLOW = ["towerpack.nn", "towerpack.inputs", "towerpack.tower", "towerpack.model"]


@pytest.mark.parametrize(
    ("statement", "what", "package"),
    [
        *((f"import {m}", m, "tensorflow") for m in TENSORFLOW),
        (
            "from towerpack.training import SimpleTrainer",
            "towerpack.training.SimpleTrainer",
            "tensorflow",
        ),
        ("from towerpack.inference import Predictor", "towerpack.inference", "tensorflow"),
        ("from towerpack.checkpoint import load_checkpoint", "towerpack.checkpoint", "safetensors"),
    ],
)
def test_the_extra_is_named(statement: str, what: str, package: str) -> None:
    program = PROGRAM.format(statement=statement, package=package)
    command = [sys.executable, "-c", program]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed.startswith(f"MissingExtraError {what} needs the package '{package}'")
    assert 'pip install "towerpack[tf]"' in printed


def test_what_needs_no_tensorflow_is_there_without_it() -> None:
    statement = "from towerpack.training import OnExisting, RunDir, StopTraining, TrainConfig"
    program = PROGRAM.format(statement=statement, package="tensorflow")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
