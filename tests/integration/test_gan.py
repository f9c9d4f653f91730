"""Two players: killed, on two devices; and the examples in short form."""

from __future__ import annotations

import gc
import runpy
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from scaling import sample
from warm_python import warm_python

PROGRAM = Path(__file__).with_name("gan_program.py")
EXAMPLES = Path(__file__).parents[2] / "examples" / "gan"


@pytest.fixture(autouse=True, scope="module")
def nothing_is_left() -> Iterator[None]:
    yield
    gc.collect()  # Whole models and environments, which else a thread of a later test would free.


def program(case: str, directory: Path) -> subprocess.CompletedProcess[str]:
    command = [*warm_python(), str(PROGRAM), case, str(directory)]
    return subprocess.run(command, capture_output=True, text=True, timeout=250)


@pytest.mark.timeout(600)
def test_a_killed_run_continues_bit_for_bit_and_two_devices_are_as_one(tmp_path: Path) -> None:
    killed = program("kill", tmp_path)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = program("compare", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "continued as if" in done.stdout
    assert "two devices are as one" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", sample(["dcgan", "cgan", "wgan_gp"]))
def test_examples_run(name: str, tmp_path: Path) -> None:
    main = runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]
    samples = main(["--steps", "10", "--out", str(tmp_path)])
    assert samples.shape == (1000, 8, 8, 1)
    assert np.abs(samples).max() <= 1
    assert samples.std(0).max() > 0
    assert len(list((tmp_path / "samples").glob("*.png"))) >= 2
