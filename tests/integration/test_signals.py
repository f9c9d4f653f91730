"""SIGTERM and Ctrl-C, as schedulers and terminals send them: to every process of a run at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from processes import children_of, communicate, is_alive, wait_until
from scaling import sample
from towerpack.checkpoint import load_checkpoint
from warm_python import warm_python

PROGRAM = Path(__file__).with_name("signalled_program.py")


def start(run_dir: Path, phase: str) -> tuple[subprocess.Popen[str], int]:
    """The program, once it has said that it is in the phase; and the group that it leads."""
    process = subprocess.Popen(
        [*warm_python(), str(PROGRAM), str(run_dir), phase],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    group, _, said = process.stdout.readline().partition(" ")
    assert said == f"{phase}\n", process.communicate()[1]
    time.sleep(0.2)
    return process, int(group)


PHASES = {
    "building": None,
    "waiting for data": 0,
    "evaluating": 20,
    "saving": 20,
    "in a trigger": 20,
}


@pytest.mark.parametrize("phase", sample(list(PHASES), at_least=4))
def test_sigterm_to_the_whole_group_is_saved_in_every_phase(tmp_path: Path, phase: str) -> None:
    process, group = start(tmp_path / "run", phase)
    workers = children_of(group)
    os.killpg(group, signal.SIGTERM)
    _, err = communicate(process, 20)
    assert process.returncode == 143, err
    assert "Traceback" not in err
    assert wait_until(lambda: not any(map(is_alive, workers)), 2)
    least = PHASES[phase]
    if least is not None:
        assert len(workers) >= 2
        assert load_checkpoint(tmp_path / "run").step >= least


def test_ctrl_c_saves_and_says_so_in_one_line(tmp_path: Path) -> None:
    process, group = start(tmp_path / "run", "evaluating")
    os.killpg(group, signal.SIGINT)
    _, err = communicate(process, 20)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert err.count("Ctrl-C") == 1
    assert load_checkpoint(tmp_path / "run").step == 20


def test_a_second_ctrl_c_ends_at_once(tmp_path: Path) -> None:
    process, pid = start(tmp_path / "run", "evaluating")
    # The signal is not looked for before the callback has done what it is at.
    os.kill(pid, signal.SIGINT)
    for _ in range(50):
        if not is_alive(pid):
            break
        os.kill(pid, signal.SIGINT)
        time.sleep(0.01)
    _, err = communicate(process, 10)
    assert process.returncode in (-signal.SIGINT, 130), err
    assert "Traceback" not in err


STARTING = """
import signal, sys
from towerpack.dataflow import DataFromList, PrefetchData
signal.signal(signal.SIGTERM, lambda *_: None)
flow = PrefetchData(DataFromList(list(range(100)), shuffle=False), 2)
print("starting", flush=True)
assert list(flow) == list(range(100))
sys.stdin.readline()  # an interpreter that ends has no handlers
"""


@pytest.mark.parametrize("delay_ms", sample([0, 20, 60, 150], at_least=2))
def test_workers_that_have_hardly_started_are_not_ended(delay_ms: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", STARTING],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()
    assert wait_until(lambda: len(children_of(process.pid)) == 2, 10)
    time.sleep(delay_ms / 1000)
    os.killpg(process.pid, signal.SIGTERM)
    communicate(process, 20)
    assert process.returncode == 0
