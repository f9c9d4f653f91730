"""Stopwatch that divides a training's time into parts."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

PRODUCTIVE: Final = "productive"
COMPILE: Final = "compile"
DATA_WAIT: Final = "data_wait"
SAVE: Final = "save"
CALLBACKS: Final = "callbacks"
PARTS: Final = (PRODUCTIVE, COMPILE, DATA_WAIT, SAVE, CALLBACKS)


class Clock:
    """Stopwatch that adds up the seconds of each part of a training, such as waiting for data.

    Time outside of `with clock.during(part)` counts as `compile` until the first step is done and
    as `callbacks` afterwards. The first call also counts as `compile`, because TensorFlow optimizes
    the graph in it. `now` is a monotonic clock in seconds.
    """

    NAMES = ("throughput/steps_per_s", "time/compute_share", "time/data_wait_share")

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.now = now
        self._seconds: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        self._part: str = COMPILE
        self._outer: list[str] = []
        self._since = now()
        self._ran = False
        self.begin_epoch()

    def during(self, part: str) -> Clock:
        """Return a context manager in which time counts as `part`. Contexts can be nested."""
        self._outer.append(self._part)
        self._enter(part)
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._enter(self._outer.pop())

    def ran(self, steps: int) -> None:
        self._steps += steps
        if not self._ran:
            self._ran = True
            self._seconds[COMPILE] += self._seconds[PRODUCTIVE]
            self._seconds[PRODUCTIVE] = 0.0
            self.built()

    def built(self) -> None:
        """Count time outside of `during` as `callbacks` from now on."""
        if not self._outer:
            self._enter(CALLBACKS)

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each part so far. Their sum is the age of the clock."""
        self._enter(self._part)
        return dict(self._seconds)

    def begin_epoch(self) -> None:
        self._steps = 0
        self._before = self.seconds()

    def report(self) -> dict[str, float]:
        """Return throughput and time shares of the epoch; empty before the first step."""
        spent = {part: s - self._before[part] for part, s in self.seconds().items()}
        total = sum(spent.values())
        if self._steps == 0 or total <= 0:
            return {}
        values = (self._steps / total, spent[PRODUCTIVE] / total, spent[DATA_WAIT] / total)
        return dict(zip(self.NAMES, values, strict=True))

    def _enter(self, part: str) -> None:
        now = self.now()
        self._seconds[self._part] += now - self._since
        self._part, self._since = part, now
