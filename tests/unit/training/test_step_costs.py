"""The file of each step's cost: exact whatever is killed, skipped, cut off or full."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

import numpy as np
import pytest

from small_training import Do, Recorded, config, fail, train
from towerpack import ConfigError
from towerpack.callbacks import ModelSaver
from towerpack.training import SimpleTrainer, spikes
from towerpack.training.state.step_costs import StepCosts, read_step_costs


def assert_costs(path: Path, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(read_step_costs(path), expected.astype(np.float32))


@pytest.mark.parametrize("seed", range(20))
def test_kills_leave_what_preceded_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    path, expected, saved, synced = tmp_path / "costs", np.full(300, np.nan), 0, 0
    clock = iter(np.cumsum(rng.uniform(0, 0.2, 100_000))).__next__

    def fsync(fd: int) -> None:
        nonlocal synced
        synced = os.fstat(fd).st_size

    monkeypatch.setattr(os, "fsync", fsync)
    while saved < 300:
        costs, step = StepCosts(path, enabled=True, clock=clock), saved
        costs.resume(step)
        expected[step:] = np.nan  # what an earlier life did after its last checkpoint
        length = len(read_step_costs(path))
        assert np.isnan(expected[length:]).all()
        assert_costs(path, expected[:length])
        while step < 300 and rng.random() > 0.1:
            before, step = step, min(300, step + int(rng.integers(1, 20)))
            # The steps that ran; those before them were skipped.
            done = rng.normal(size=rng.integers(1, step - before + 1)).astype(np.float32)
            costs.add(done, step)
            expected[step - len(done) : step] = done
            if rng.random() < 0.2 or step == 300:
                costs.flush()
                saved = step
        # Killed. What was not synced may be lost.
        os.truncate(path, rng.integers(min(synced, path.stat().st_size), path.stat().st_size + 1))
    assert_costs(path, expected)


def test_a_full_disk_warns_once_and_is_made_up_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    costs = StepCosts(tmp_path / "costs", enabled=True, clock=iter(range(100)).__next__)
    costs.resume(0)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING, "towerpack"):
        patched.setattr(os, "write", full)
        for step in (2, 4, 6):
            costs.add(np.full(2, step), step)
            costs.flush()
    assert [r.getMessage() for r in caplog.records] == [
        f"{tmp_path / 'costs'} cannot be written and is incomplete: "
        "[Errno 28] No space left on device."
    ]
    costs.add(np.full(2, 8), 8)
    assert_costs(tmp_path / "costs", np.repeat([2, 4, 6, 8], 2))
    costs.close()


def test_links_are_refused(tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"precious")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "step_costs.f32").symlink_to(tmp_path / "precious")
    with pytest.raises(ConfigError, match="must not be a symbolic link"):
        train(tmp_path / "run")
    assert (tmp_path / "precious").read_bytes() == b"precious"


@pytest.mark.parametrize("steps_per_call", [1, 4])
def test_the_file_has_what_callbacks_saw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps_per_call: int
) -> None:
    monkeypatch.setattr("towerpack.training.loop.loop.Pace.steps", steps_per_call)
    costs: dict[int, float] = {}

    def record(callback: Recorded) -> None:
        costs[callback.trainer.global_step] = float(callback.outputs[-1]["cost"])

    def start(at: int) -> None:
        recorded = Recorded("cost")
        recorded.on = lambda hook: record(recorded) if hook == "after_step" else None
        trainer = SimpleTrainer(
            config(tmp_path, [ModelSaver(), recorded, Do("after_step", fail, at)], max_epoch=4)
        )
        trainer.train()

    for at in (9, 21):
        with pytest.raises(KeyError):
            start(at)
    start(99)
    assert sorted(costs) == list(range(1, 25))
    assert_costs(tmp_path / "step_costs.f32", np.array([costs[step] for step in range(1, 25)]))
    train(tmp_path, max_epoch=5, step_costs=False)  # continues after step 24
    assert len(read_step_costs(tmp_path / "step_costs.f32")) == 24
    train(tmp_path / "without", step_costs=False)
    assert not (tmp_path / "without" / "step_costs.f32").exists()


def test_costs_that_are_not_numbers_stand_out(tmp_path: Path) -> None:
    costs = StepCosts(tmp_path / "step_costs.f32", enabled=True)
    costs.resume(0)
    values = np.random.default_rng(0).normal(size=200)
    values[150:] = np.nan
    costs.add(values, 210)  # ten steps were skipped
    costs.close()
    assert [spike.step for spike in spikes(tmp_path, top=1)] == [161]
    values[9:] = np.nan  # in most of the window
    costs.resume(0)
    costs.add(values[:60], 60)
    costs.close()
    assert [spike.step for spike in spikes(tmp_path, top=1)] == [10]
