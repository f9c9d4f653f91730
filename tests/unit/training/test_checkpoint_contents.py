"""What a checkpoint of a run holds, and what a resume restores."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from towerpack import CheckpointMismatchError, NumericsError
from towerpack.callbacks import Callback, Callbacks
from towerpack.checkpoint import Checkpoint, CheckpointStore, load_checkpoint
from towerpack.inputs import DummyConstantInput
from towerpack.training.optim.hyper_params import HyperParams
from towerpack.training.state.checkpoint_contents import Contents
from towerpack.training.state.counters import Phase, RunState


class Counts(Callback):
    count = 0

    def state(self) -> Any:
        return {"count": self.count}

    def restore(self, state: Any) -> None:
        self.count = state["count"]


class Data(DummyConstantInput):
    """A source whose position is a number."""

    position = 0

    def state(self) -> Any:
        return {"position": self.position}


class Numbers:
    total = 0.0

    def state(self) -> dict[str, Any]:
        return {"total": self.total}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.total = state["total"]


class Run:
    """All that a checkpoint is made of."""

    def __init__(self, weight: float = 1.0, rate: float = 0.5, **settings: Any) -> None:
        self.state = RunState(steps_per_epoch=6, max_epoch=2)
        self.counts, self.data, self.numbers = Counts(), Data([[2]]), Numbers()
        self.rate = tf.Variable(rate, trainable=False)
        self.groups = {
            "model": {"w": tf.Variable([weight, weight]), "rate": self.rate},
            "optimizer": {"slot": tf.Variable(np.int64(0))},
        }
        self.params = HyperParams()
        self.params.find(self.groups, {})
        self.flushed = 0
        numbers: Any = self.numbers
        self.contents = Contents(
            state=self.state,
            numbers=numbers,
            callbacks=Callbacks([self.counts]),
            source=self.data,
            hyper_params=self.params,
            groups=lambda: self.groups,
            settings={"seed": 5, "rate": rate, **settings},
            check_nan=True,
            warns=True,
            flush=self._flush,
        )

    def _flush(self) -> None:
        self.flushed += 1

    def trained(self) -> Run:
        self.state.step, self.state.epoch, self.state.local_step = 8, 2, 2
        self.state.in_epoch, self.state.phase = True, Phase.STEP_TRIGGERS
        self.groups["model"]["w"].assign([3.0, 4.0])
        self.groups["optimizer"]["slot"].assign(np.int64(8))
        self.counts.count, self.data.position, self.numbers.total = 7, 64, 2.5
        return self

    def saved(self, directory: Path) -> Checkpoint:
        taken = self.contents.capture()
        with CheckpointStore(directory / "checkpoints") as store:
            store.save(taken.step, taken.tensors, taken.state)
        return load_checkpoint(directory)


def test_a_resume_restores_all_that_was_captured(tmp_path: Path) -> None:
    old, new = Run().trained(), Run()
    data = new.contents.restore(old.saved(tmp_path))
    assert old.flushed == 1
    assert data == {"position": 64}, "the caller starts the data there"
    assert new.state == old.state
    assert (new.counts.count, new.numbers.total) == (7, 2.5)
    for group, variables in old.groups.items():
        for name, variable in variables.items():
            np.testing.assert_array_equal(new.groups[group][name].numpy(), variable.numpy())


def test_while_it_is_held_callbacks_and_hyper_parameters_are_as_they_were() -> None:
    run = Run().trained()
    run.contents.hold()
    run.counts.count = 99
    run.params.get("rate").set(0.125)
    run.groups["model"]["w"].assign([5.0, 5.0])
    taken = run.contents.capture()
    assert taken.state["callbacks"] == {"Counts#0": {"count": 7}}
    assert taken.tensors["model"]["rate"] == 0.5
    assert taken.tensors["model"]["w"].tolist() == [5.0, 5.0]
    run.contents.let_go()
    taken = run.contents.capture()
    assert taken.state["callbacks"] == {"Counts#0": {"count": 99}}
    assert taken.tensors["model"]["rate"] == 0.125


def test_weights_that_are_nan_are_not_captured() -> None:
    run = Run().trained()
    run.contents.check()
    run.groups["optimizer"]["more"] = tf.Variable(np.nan)  # only weights count
    run.contents.capture()
    run.groups["model"]["w"].assign([1.0, np.nan])
    for look in (run.contents.check, run.contents.capture):
        with pytest.raises(NumericsError, match="at step 8"):
            look()


def test_a_checkpoint_of_another_kind_of_step_changes_nothing(tmp_path: Path) -> None:
    checkpoint = Run().trained().saved(tmp_path)
    new = Run()
    new.groups["discriminator"] = {"slot": tf.Variable(0.0)}
    with pytest.raises(
        CheckpointMismatchError, match="a different kind of training step"
    ) as caught:
        new.contents.restore(checkpoint)
    assert "discriminator" in str(caught.value)
    assert new.state.step == 0
    assert new.groups["model"]["w"].numpy().tolist() == [1.0, 1.0]


def test_a_hyper_parameter_that_the_program_changed_stays_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = Run().trained().saved(tmp_path)
    new = Run(rate=0.25)
    new.contents.restore(checkpoint)
    assert new.params.get("rate").get() == 0.25
    assert new.params.overridden == {"rate"}
    assert "Settings that differ" in caplog.text
    assert new.groups["model"]["w"].numpy().tolist() == [3.0, 4.0]
