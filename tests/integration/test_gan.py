"""Two players: killed, on two devices, and the examples in short form."""

from __future__ import annotations

import runpy
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from towerpack.checkpoint import list_checkpoints

PROGRAM = Path(__file__).with_name("gan_program.py")
EXAMPLES = Path(__file__).parents[2] / "examples" / "gan"


def program(case: str, directory: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), case, str(directory)]
    return subprocess.run(command, capture_output=True, text=True, timeout=200)


def test_a_killed_run_continues_bit_for_bit(tmp_path: Path) -> None:
    killed = program("kill", tmp_path / "run")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert list_checkpoints(tmp_path / "run")
    done = program("compare", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert "continued" in done.stdout


def test_two_devices_are_as_one_large_batch(tmp_path: Path) -> None:
    done = program("devices", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "as one" in done.stdout


@pytest.mark.parametrize("name", ["dcgan", "cgan", "wgan_gp"])
def test_examples_run(name: str, tmp_path: Path) -> None:
    main = runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]
    samples = main(["--steps", "10", "--out", str(tmp_path)])
    assert samples.shape == (1000, 8, 8, 1)
    assert np.abs(samples).max() <= 1
    assert samples.std(0).max() > 0
    assert len(list((tmp_path / "samples").glob("*.png"))) >= 2
