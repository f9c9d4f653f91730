"""Reader of monitored values: returns each value once, and compares values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from towerpack._core.errors import ConfigError
from towerpack._core.logs import get_logger
from towerpack.callbacks.monitors import Monitors
from towerpack.callbacks.monitors._base import Mode

_log = get_logger(__name__)


def direction_of(name: str, directions: Mapping[str, Mode], fix: str) -> Mode:
    """Return the declared direction of a monitored value, or raise `ConfigError` with `fix`."""
    if name not in directions:
        raise ConfigError(
            f"No metric declares whether a smaller or a larger '{name}' is better.",
            got=", ".join(f"{known}: {mode}" for known, mode in directions.items()),
            fix=fix,
        )
    return directions[name]


def keras_direction(metric: Any) -> Mode | None:
    """Return 'max' if Keras declares that larger values are better, 'min' or None."""
    modes: dict[Any, Mode] = {"up": "max", "down": "min"}
    return modes.get(getattr(metric, "_direction", None))


class Watch:
    """Reader of a monitored value for the callback `owner`. Returns each new value once."""

    def __init__(self, name: str, owner: str, mode: Mode | None = None) -> None:
        if mode not in (None, "min", "max"):
            raise ConfigError(f"{owner}: mode must be 'min', 'max' or None, got {mode!r}.")
        self.name, self.seen_step = name, -1
        self._owner, self._mode = owner, mode

    def resolve(self, monitors: Monitors) -> None:
        """Determine whether low or high values are better, if no mode was passed."""
        fix = "pass mode='min' or mode='max'"
        self._mode = self._mode or direction_of(self.name, monitors.directions, fix)

    def fresh(self, monitors: Monitors) -> tuple[int, float] | None:
        """Return the newest (step, value), or None if it was returned before. Warn of NaN."""
        self.resolve(monitors)  # A wrapper may have skipped `before_train` of the callback.
        newest = monitors.history(self.name, last=1) if self.name in monitors.names() else []
        if not newest or newest[0][0] <= self.seen_step:
            return None
        ((step, value),) = newest
        self.seen_step = step
        if math.isnan(value):
            _log.warning("%s: %s is NaN at step %d.", self._owner, self.name, step)
        return step, value

    def improves(self, value: float, best: float | None, min_delta: float = 0.0) -> bool:
        """Return whether `value` is better than `best` by more than `min_delta`. NaN is not."""
        if best is None or math.isnan(value):
            return not math.isnan(value)
        return value < best - min_delta if self._mode == "min" else value > best + min_delta
