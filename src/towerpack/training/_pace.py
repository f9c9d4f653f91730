"""How many steps one call of TensorFlow should run."""

from __future__ import annotations

BUDGET_S = 0.2
_MOST_STEPS = 4096


class Pace:
    """Choose the number of steps so that a call lasts about `budget_s`.

    Long enough that the cost of a call vanishes, short enough that signals, displays and callbacks
    are served in time. It starts with one step and at most doubles.

    Args:
        budget_s: Seconds that a call should last.
    """

    def __init__(self, budget_s: float = BUDGET_S) -> None:
        self._budget_s = budget_s
        self._steps = 1

    @property
    def steps(self) -> int:
        """Steps for the next call."""
        return self._steps

    def ran(self, steps: int, seconds: float) -> None:
        """Learn from a call."""
        if steps < 1:
            return
        fitting = int(self._budget_s / max(seconds / steps, 1e-7))
        self._steps = max(1, min(fitting, 2 * max(steps, self._steps), _MOST_STEPS))
