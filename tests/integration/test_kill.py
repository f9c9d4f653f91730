"""Promise 3: killed at any instant, a run continues to the same weights, bit for bit."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from scaling import only_in_full, sample, scaled
from towerpack.checkpoint import list_checkpoints, load_checkpoint
from towerpack.training.state.ledger import read_ledger, totals_of
from warm_python import warm_python

PROGRAM = Path(__file__).with_name("resumable_program.py")
EVERY_STEP = Path(__file__).with_name("every_step_program.py")
KILLS = scaled(10)


def command(run_dir: Path, output: Path) -> list[str]:
    return [*warm_python(), str(PROGRAM), str(run_dir), str(output)]


def start(run_dir: Path, output: Path) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(command(run_dir, output), stdout=pipe, stderr=pipe, text=True)


def finish(run_dir: Path, output: Path) -> dict[str, np.ndarray]:
    # Not `start`: one that takes too long is killed, or tests that come later would fail over it.
    done = subprocess.run(command(run_dir, output), capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "done" in done.stdout
    with np.load(output) as saved:
        return dict(saved)


def assert_bit_equal(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> None:
    assert ours.keys() == theirs.keys()
    different = [name for name in ours if ours[name].tobytes() != theirs[name].tobytes()]
    assert not different


def kill_after(process: subprocess.Popen[str], lines: int, delay_s: float) -> int | None:
    """SIGKILL after some lines of progress and a delay; the step told last, None if it was done."""
    told = None
    for _ in range(lines):
        line = process.stdout.readline()
        if not line or line.startswith("done"):
            break
        told = int(line.split()[1])
    time.sleep(delay_s)
    process.kill()
    process.communicate(timeout=60)
    return told


@pytest.mark.timeout(600)
def test_kills_end_with_the_same_weights(tmp_path: Path) -> None:
    undisturbed = finish(tmp_path / "undisturbed", tmp_path / "undisturbed.npz")
    rng = random.Random(20261120)
    run_dir, output = tmp_path / "run", tmp_path / "out.npz"
    # Before the first step, while TensorFlow is traced.
    process = start(run_dir, output)
    time.sleep(rng.uniform(0.5, 2))
    process.kill()
    process.communicate(timeout=60)
    # SIGTERM saves where it is.
    process = start(run_dir, output)
    for _ in range(3):
        process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 143, err
    assert "Saved at step" in err and "done" not in out
    assert load_checkpoint(run_dir).step >= 15
    moments = []
    for number in range(KILLS):
        # A few lines on; half of the times at once, since every second line (each tenth step)
        # comes with a save that is then under way.
        delay = rng.uniform(0, 0.008) if number % 2 else rng.uniform(0, 0.08)
        moments.append(kill_after(start(run_dir, output), rng.randint(2, 7), delay))
        # A save that was killed is invisible: what is there under its final name is valid.
        assert all(row.valid for row in list_checkpoints(run_dir))
    # The first start has work left. Once one is done, so are all after it.
    at_work = [moment for moment in moments if moment is not None]
    assert at_work and moments == at_work + [None] * (len(moments) - len(at_work))
    assert_bit_equal(finish(run_dir, output), undisturbed)
    costs = [(run / "step_costs.f32").read_bytes() for run in (run_dir, tmp_path / "undisturbed")]
    assert costs[0] == costs[1] and len(costs[0]) == 4 * 180


@only_in_full  # above one is killed a few times, and workers are in `test_workers.py`
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "trainer",
    [
        "SimpleTrainer",
        "SyncMultiGPUTrainer",
        "MultiWorkerTrainer",
    ],
)
def test_killed_at_every_step(tmp_path: Path, trainer: str) -> None:
    steps = sample(range(1, 41))
    program = [*warm_python(), str(EVERY_STEP), str(tmp_path), trainer, *map(str, steps)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr
    runs = []
    for name in ("killed", "undisturbed"):
        with np.load(tmp_path / name / "out.npz") as saved:
            runs.append(dict(saved))
    assert_bit_equal(*runs)
    # The ledger has seen all of it: each step is counted once, each second belongs somewhere.
    lives = read_ledger(tmp_path / "killed" / "ledger.jsonl")
    assert [life.ending for life in lives] == [None] * len(steps) + ["Complete"]
    assert sum(life.to_step - life.from_step - life.lost_steps for life in lives) == 40
    totals = totals_of(lives)
    assert sum(totals.values()) == pytest.approx(lives[-1].ended - lives[0].began, abs=1e-3)
    assert totals["productive"] > 0 and totals["down"] > 0
