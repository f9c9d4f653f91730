"""Devices that do not wait for one another; and a training without steps."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from small_training import Recorded, assert_same, config, flow, train
from towerpack import ConfigError
from towerpack.callbacks import InferenceRunner, ModelSaver, ScalarStats
from towerpack.training import NoOpTrainer
from warm_python import warm_python

PROGRAM = Path(__file__).with_name("async_program.py")


def test_on_two_devices(tmp_path: Path) -> None:
    command = [*warm_python(), str(PROGRAM), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert len(done.stdout.split()) == 8


def test_without_steps_only_callbacks_act(tmp_path: Path) -> None:
    trained = train(tmp_path, [ModelSaver()], max_epoch=1)
    hooks = Recorded()
    evaluation = InferenceRunner(flow(), ScalarStats("cost"))
    idle = NoOpTrainer(config(tmp_path, [ModelSaver(), evaluation, hooks], max_epoch=2))
    idle.train()
    assert idle.complete and idle.global_step == 12
    assert [hook for hook, *_ in hooks.log].count("trigger_step") == 6
    assert len(idle.monitors.history("val/cost")) == 1
    assert "cost" not in idle.monitors.names()
    assert_same(idle.get_weights(), trained.get_weights())
    # The data go on where training left them: the third epoch is what the second would have been.
    after = train(tmp_path, [ModelSaver()], max_epoch=3)
    assert after.global_step == 18


def test_outputs_of_steps_that_are_not_computed_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="computes no steps"):
        NoOpTrainer(config(tmp_path, [Recorded("cost")])).train()
