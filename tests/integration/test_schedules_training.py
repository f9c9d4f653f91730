"""Hyper-parameters that change after each step, inside the compiled loop."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest

from scaling import sample
from small_training import Do, Model, PacedBy, Recorded, assert_same, train
from towerpack import CallbackError, ConfigError
from towerpack.callbacks import (
    Callback,
    HumanHyperParamSetter,
    ModelSaver,
    PeriodicTrigger,
    ScheduledHyperParamSetter,
)
from towerpack.training import SimpleTrainer
from towerpack.training.loop import loop

LR = "learning_rate"
# Of 24 steps in 4 epochs; with a flat piece, and places at the end and in the middle of an epoch.
LINE = [(2, 0.3), (6, 0.1), (8, 0.1), (15, 0.07)]


@pytest.fixture(autouse=True)
def _four_steps_per_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "Pace", PacedBy)


class RateOf:
    """The learning rate as an object: its line is drawn on the host, one step per call."""

    trainer: Any

    def get(self) -> float:
        return self.trainer.hyper_param(LR).get()

    def set(self, value: float) -> None:
        self.trainer.hyper_param(LR).set(value)


def trained(run_dir: Path, *more: Callback, host: bool = False, epochs: int = 4) -> SimpleTrainer:
    rate: Any = RateOf() if host else LR

    def bind(callback: Callback) -> None:
        rate.trainer = callback.trainer

    callbacks = [
        Do("before_train", bind if host else lambda _: None),
        ScheduledHyperParamSetter(rate, LINE, "linear", step_based=True),
        HumanHyperParamSetter(),
        ModelSaver(),
    ]
    model = Model(lambda: keras.optimizers.SGD(0.05))
    return train(run_dir, [*callbacks, *more], model=model, max_epoch=epochs)


def assert_alike(one: SimpleTrainer, other: SimpleTrainer) -> None:
    assert_same(one.get_weights(), other.get_weights())
    last = one.monitors.history(LR)
    assert last == other.monitors.history(LR)[-len(last) :]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> SimpleTrainer:
    """Trained with the line drawn on the host."""
    return trained(tmp_path_factory.mktemp("host"), host=True)


@pytest.mark.parametrize(
    ("steps", "calls"), sample([(4, [4, 6, 10]), (100, [6, 12, 18]), (1, [1, 2, 3])], at_least=2)
)
def test_a_line_by_steps_is_that_of_single_steps_and_cuts_no_call(
    whole: SimpleTrainer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    steps: int,
    calls: list[int],
) -> None:
    monkeypatch.setattr(PacedBy, "fixed", steps)
    recorded = Recorded()
    assert_alike(trained(tmp_path, recorded), whole)
    assert [step for hook, _, step in recorded.log if hook == "after_call"][:3] == calls


@pytest.mark.parametrize("stop", sample([1, 7, 19, 15], at_least=2))
def test_it_resumes_inside_and_beside_the_line(
    whole: SimpleTrainer, tmp_path: Path, stop: int
) -> None:
    saver = PeriodicTrigger(ModelSaver(), every_k_steps=stop)
    ends = Do("trigger_step", lambda self: self.trainer.request_stop(), at=stop)
    ends.next_stop = lambda step: stop if step < stop else None  # type: ignore[method-assign]
    trained(tmp_path / "parts", saver, ends)
    assert_alike(trained(tmp_path / "parts"), whole)


def by_hand(epochs: tuple[int, ...]) -> Callback:
    """The file says 0.03125 while those epochs end."""

    def write(self: Callback) -> None:
        file = self.trainer.run_dir / "hyper.yaml"
        file.write_text("learning_rate: 0.03125" if self.trainer.epoch in epochs else "")

    return Do("after_epoch", write)


@pytest.mark.parametrize("epochs", sample([(1,), (3,)]))
def test_what_is_set_by_hand_holds_against_the_line(
    tmp_path: Path, epochs: tuple[int, ...]
) -> None:
    inside = trained(tmp_path / "graph", by_hand(epochs))
    assert_alike(inside, trained(tmp_path / "host", by_hand(epochs), host=True))
    by_epoch = [value for _, value in inside.monitors.history(LR)]
    # The line is in force again, or has ended, in the epoch after the file's last word.
    assert [value == 0.03125 for value in by_epoch] == [
        epoch - 1 in epochs for epoch in range(1, 5)
    ]


class Own(Callback):
    """A schedule of one's own."""

    def __init__(self, value: Callable[[int], float | None], name: str = LR) -> None:
        self._name, self._value = name, value

    def setup(self, trainer: Any) -> None:
        trainer.schedule(self._name, self._value)


def test_a_schedule_of_ones_own(tmp_path: Path) -> None:
    rates = [0.1 * 0.5**step for step in range(13)]
    used = Recorded()
    one = train(tmp_path / "one", [Own(rates.__getitem__), used], max_epoch=2)
    # Of several, the last that has a value decides.
    halves = [lambda step: 7.0, lambda step: rates[step] if step % 2 else None]
    halves.append(lambda step: None if step % 2 else rates[step])
    several = train(tmp_path / "several", [Own(f) for f in halves], max_epoch=2)
    assert_alike(several, one)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_schedule_must_give_numbers(tmp_path: Path, bad: float) -> None:
    with pytest.raises(CallbackError, match="learning_rate"):
        train(tmp_path, [Own(lambda step: bad if step == 3 else None)])


def test_a_schedule_of_a_name_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Did you mean 'learning_rate'"):
        train(tmp_path, [Own(lambda step: 0.1, "learning_rte")])


def test_a_schedule_that_comes_too_late(tmp_path: Path) -> None:
    late = Do("before_train", lambda self: self.trainer.schedule(LR, lambda step: 0.1))
    with pytest.raises(
        ConfigError, match=r"(?s)before the training loop is compiled.*setup\(self, trainer\)"
    ):
        train(tmp_path, [late])
