"""Callbacks that end training before the last epoch."""

from __future__ import annotations

import time as _time
from collections.abc import Callable
from typing import Any

from towerpack._core.errors import ConfigError
from towerpack.callbacks._base import Callback
from towerpack.callbacks.watch import Mode, Watch


class EarlyStopping(Callback):
    """End training normally once a monitored value has stopped improving.

    Args:
        name: Name of the monitored value. An earlier callback in the list must produce it.
        patience: Number of values in a row without improvement, or NaN, after which training ends.
        mode: 'min' if smaller is better, 'max' if larger is; None to use `Inferencer.better`.
        min_delta: Least change that counts as an improvement.

    Raises:
        ConfigError: `patience` or `min_delta` is too small.
    """

    def __init__(
        self, name: str, patience: int = 5, mode: Mode | None = None, min_delta: float = 0.0
    ) -> None:
        if patience < 1 or not min_delta >= 0:
            raise ConfigError(
                f"EarlyStopping({name!r}): patience must be at least 1 and min_delta at least 0, "
                f"got patience={patience} and min_delta={min_delta}."
            )
        self.needs = (name,)
        self._name, self._patience, self._min_delta = name, patience, min_delta
        self._best: float | None = None
        self._best_step: int | None = None
        self._waited = 0
        self._watch = Watch(name, repr(self), mode)

    def before_train(self) -> None:
        self._watch.resolve(self.trainer.monitors)
        self._stop_if_due()  # a resumed run that had ended does not go on

    def trigger(self) -> None:
        fresh = self._watch.fresh(self.trainer.monitors)
        if fresh is None:
            return
        if self._watch.improves(fresh[1], self._best, self._min_delta):
            self._best_step, self._best = fresh
            self._waited = 0
        else:
            self._waited += 1
            self._stop_if_due()

    def _stop_if_due(self) -> None:
        if self._waited < self._patience:
            return
        best = "" if self._best is None else f" on {self._best:.6g} of step {self._best_step}"
        self.trainer.request_stop(f"{self._name} did not improve{best}, {self._waited} times")

    def state(self) -> dict[str, Any]:
        best = {"best": self._best, "step": self._best_step}
        return {**best, "waited": self._waited, "seen": self._watch.seen_step}

    def restore(self, state: Any) -> None:
        self._best, self._best_step = state["best"], state["step"]
        self._waited, self._watch.seen_step = state["waited"], state["seen"]

    def __repr__(self) -> str:
        return f"EarlyStopping({self._name!r})"


class StopAfter(Callback):
    """End training normally after a time or a number of steps, whichever comes first.

    Args:
        time: Seconds of training, including evaluation, saving and earlier starts.
        steps: Number of global steps.
        clock: Returns the current time in seconds.

    Raises:
        ConfigError: Neither limit is passed, or one is not positive.
    """

    def __init__(
        self,
        time: float | None = None,
        steps: int | None = None,
        *,
        clock: Callable[[], float] = _time.monotonic,
    ) -> None:
        limits = [limit for limit in (time, steps) if limit is not None]
        if not limits or not min(limits) > 0:
            raise ConfigError(
                "StopAfter needs a positive time in seconds or number of steps, got "
                f"time={time} and steps={steps}."
            )
        self._time, self._steps, self._clock = time, steps, clock
        self._used = 0.0
        self._started: float | None = None

    def _seconds(self) -> float:
        return self._used + (0.0 if self._started is None else self._clock() - self._started)

    def before_train(self) -> None:
        self._started = self._clock()
        self.trigger()  # a resumed run that had ended does not go on

    def after_call(self) -> None:
        self.trigger()

    def trigger(self) -> None:
        if self._steps is not None and self.trainer.global_step >= self._steps:
            self.trainer.request_stop(f"{self.trainer.global_step} steps are done")
        elif self._time is not None and self._seconds() >= self._time:
            self.trainer.request_stop(f"{self._seconds():.0f} s have passed")

    def next_stop(self, step: int) -> int | None:
        return self._steps if self._steps is not None and step < self._steps else None

    def state(self) -> dict[str, Any]:
        return {"seconds": self._seconds()}

    def restore(self, state: Any) -> None:
        self._used = float(state["seconds"])
