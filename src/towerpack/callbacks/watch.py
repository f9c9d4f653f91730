"""The newest value of a monitored name, each taken once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from towerpack._core.errors import ConfigError
from towerpack._core.logs import get_logger
from towerpack.callbacks.monitors._base import Mode

if TYPE_CHECKING:
    from towerpack.callbacks.monitors import Monitors

_log = get_logger(__name__)


def direction_of(name: str, directions: Mapping[str, Mode], fix: str) -> Mode:
    """Return the declared direction of a monitored number.

    Raises:
        ConfigError: No metric declares it.
    """
    if name not in directions:
        raise ConfigError(
            f"No metric declares whether a smaller or a larger '{name}' is better.",
            got=", ".join(f"{known}: {mode}" for known, mode in directions.items()),
            fix=fix,
        )
    return directions[name]


def keras_direction(metric: Any) -> Mode | None:
    """Return the direction that Keras knows for a metric; None for `Mean`, `Sum` and the like."""
    modes: dict[Any, Mode] = {"up": "max", "down": "min"}
    return modes.get(getattr(metric, "_direction", None))


class Watch:
    """A monitored name, its values that were not there before, and which of them is better.

    Args:
        name: The monitored name.
        owner: The callback that watches, for log messages.
        mode: 'min' if smaller is better, 'max' if larger is; None for the declared direction.

    Raises:
        ConfigError: The mode is neither.
    """

    def __init__(self, name: str, owner: str, mode: Mode | None = None) -> None:
        if mode not in (None, "min", "max"):
            raise ConfigError(
                f"{owner}: mode={mode!r} makes no sense.",
                expected="'min' if smaller is better, 'max' if larger is",
            )
        self.name, self.seen_step = name, -1
        self._owner, self._mode = owner, mode

    def resolve(self, monitors: Monitors) -> None:
        """Take the declared direction. Raise `ConfigError` if none is declared or given."""
        fix = "pass mode='min' or mode='max'"
        self._mode = self._mode or direction_of(self.name, monitors.directions, fix)

    def fresh(self, monitors: Monitors) -> tuple[int, float] | None:
        """The newest (step, value) if it is newer than the last one given; NaN is logged."""
        self.resolve(monitors)  # A wrapper may have kept `before_train` from the callback.
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
