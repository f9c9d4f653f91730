"""The law of states: stopped at any step and continued, a callback puts what it would have put."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from small_host import SmallHost, round_trip
from towerpack import callbacks
from towerpack.callbacks import (
    Callback,
    CallbackFactory,
    Callbacks,
    EarlyStopping,
    EnableCallbackIf,
    HumanHyperParamSetter,
    HyperParamSetterWithFunc,
    LearningRateFinder,
    MaxSaver,
    MinSaver,
    PeriodicCallback,
    PeriodicTrigger,
    ScheduledHyperParamSetter,
    SimpleMovingAverage,
    StatMonitorParamSetter,
    StopAfter,
    cosine_schedule,
)


def average() -> Callback:
    return SimpleMovingAverage("cost", 5)


def timed() -> Callback:
    """Ten of its seconds: one for each look, which each call takes one of."""
    clock = iter(range(1000))
    return StopAfter(time=10, clock=lambda: float(next(clock)) / 2)


class Score(Callback):
    """What others watch: it gets better, worse, no better, best."""

    def produces(self) -> list[str]:
        return ["val/error"]

    def trigger(self) -> None:
        value = [0.5, 0.4, 0.45, 0.41, 0.3][self.epoch_num - 1]
        self.trainer.monitors.put_scalar("val/error", value, self.global_step)


EVERY: dict[str, Callable[[], Callback]] = {
    "average": average,
    "average, rarely": lambda: PeriodicTrigger(average(), every_k_steps=2),
    "average, gated": lambda: EnableCallbackIf(average(), lambda self: self.global_step > 3),
    "average, of each third": lambda: PeriodicCallback(average(), every_k_steps=3),
    "finder": lambda: LearningRateFinder(steps=20),
    "best": lambda: MinSaver("val/error"),
    "worst": lambda: MaxSaver("val/error"),
    "early": lambda: EarlyStopping("val/error", 2, "min"),
    "by hand": HumanHyperParamSetter,
    "function": lambda: HyperParamSetterWithFunc("learning_rate", lambda epoch, old: old * 0.9),
    "plateau": lambda: StatMonitorParamSetter(
        "learning_rate", "val/error", lambda rate: rate / 2, threshold=0.0, last_k=2
    ),
    "table": lambda: ScheduledHyperParamSetter("learning_rate", [(0, 0.1), (2, 0.01)]),
    "steps": lambda: StopAfter(steps=18),
    "cosine": lambda: cosine_schedule(0.1, 20, warmup=3),
}


def host(run_dir: Path, callback: Callback) -> SmallHost:
    rate = CallbackFactory(
        after_step=lambda self, outputs: self.trainer.monitors.put_scalar(
            "rate", self.trainer.hyper_param("learning_rate").get(), self.global_step
        )
    )
    return SmallHost(
        run_dir,
        [Score(), callback, rate],
        max_epoch=5,
        steps_per_call=1,
        outputs=lambda step: {"cost": 1 / step},
    )


def values(of: SmallHost) -> dict[str, dict[int, float]]:
    return {name: dict(of.monitors.history(name)) for name in of.monitors.names()}


@pytest.mark.parametrize("name", EVERY)
def test_continued_it_is_as_if_never_stopped(tmp_path: Path, name: str) -> None:
    (tmp_path / "hyper.yaml").write_text("learning_rate: 0.05")
    acting = EVERY[name]()
    whole = host(tmp_path, acting).run()
    for stop in (6,) if name == "finder" else (1, 4, 6, 11):  # It draws at each end.
        first = host(tmp_path, EVERY[name]())
        first.callbacks.callbacks.append(StopAfter(steps=stop))
        first.run()
        assert first.global_step == stop
        continued = EVERY[name]()
        second = host(tmp_path, continued)
        second.global_step, second.epoch, second.local_step = stop, first.epoch, first.local_step
        if first.local_step == 4:
            second.local_step = 0
        second.params["learning_rate"].set(first.params["learning_rate"].get())
        second.callbacks.restore(round_trip(first.callbacks.state()))
        second.run()
        together: dict[str, Any] = {**values(first)}
        for key, found in values(second).items():
            together[key] = {**together.get(key, {}), **found}
        assert together == values(whole), stop
        assert second.global_step == whole.global_step, stop
        assert first.saves + second.saves == whole.saves, stop
        if name != "steps":  # It counts seconds, below.
            assert continued.state() == acting.state(), stop


def test_none_with_a_state_is_left_out() -> None:
    def parts(callback: Callback) -> set[type]:
        inner = getattr(callback, "callback", None)
        return {*type(callback).__mro__} | (set() if inner is None else parts(inner))

    tried = set().union(*(parts(make()) for make in EVERY.values()))
    kinds = [kind for kind in vars(callbacks).values() if isinstance(kind, type)]
    stateful = {k for k in kinds if issubclass(k, Callback) and k.state is not Callback.state}
    assert len(stateful) > 10
    assert not [kind.__name__ for kind in stateful - tried if not issubclass(Callbacks, kind)]


def test_seconds_are_counted_on() -> None:
    one = timed()
    one.trainer = SmallHost(Path())  # type: ignore[assignment]
    for _ in range(3):
        one.before_train()
        saved = round_trip(one.state())
        one = timed()
        one.trainer = SmallHost(Path())  # type: ignore[assignment]
        one.restore(saved)
    assert one.state() == {"seconds": saved["seconds"]} and saved["seconds"] > 1
