"""The newest value of a monitored name, each taken once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from towerpack._core.errors import ConfigError
from towerpack._core.logs import get_logger

if TYPE_CHECKING:
    from towerpack.callbacks.monitors import Monitors

_log = get_logger(__name__)

Mode = Literal["min", "max"]


class Watch:
    """A monitored name, its values that were not there before, and which of them is better.

    Args:
        name: The monitored name.
        owner: The callback that watches, for log messages.
        mode: 'min' if smaller is better, 'max' if larger is.

    Raises:
        ConfigError: The mode is neither.
    """

    def __init__(self, name: str, owner: str, mode: Mode = "min") -> None:
        if mode not in ("min", "max"):
            raise ConfigError(
                f"{owner}: mode={mode!r} makes no sense.",
                expected="'min' if smaller is better, 'max' if larger is",
            )
        self.name, self.seen_step = name, -1
        self._owner, self._mode = owner, mode

    def fresh(self, monitors: Monitors) -> tuple[int, float] | None:
        """The newest (step, value) if it is newer than the last one given; NaN is logged."""
        history = monitors.history(self.name) if self.name in monitors.names() else []
        if not history or history[-1][0] <= self.seen_step:
            return None
        step, value = history[-1]
        self.seen_step = int(step)
        if math.isnan(value):
            _log.warning("%s: %s is NaN at step %d.", self._owner, self.name, step)
        return self.seen_step, float(value)

    def improves(self, value: float, best: float | None, min_delta: float = 0.0) -> bool:
        """Whether `value` beats `best` by more than `min_delta`. NaN beats nothing."""
        if best is None or math.isnan(value):
            return not math.isnan(value)
        return value < best - min_delta if self._mode == "min" else value > best + min_delta
