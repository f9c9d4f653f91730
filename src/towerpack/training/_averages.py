"""Means and moving averages of what the steps report, independent of how steps fall into calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


class StepAverages:
    """The epoch's mean cost, and moving averages over all steps.

    Sums run from step to step in order, so the numbers do not depend, not even in the last bit, on
    how many steps a call has run.

    Args:
        decays: For each moving average, the share of the old value that is kept in each step.
    """

    def __init__(self, decays: Mapping[str, float]) -> None:
        self._decays = dict(decays)
        self._moving: dict[str, tuple[float, float]] = dict.fromkeys(decays, (0.0, 0.0))
        self._sum = 0.0
        self._count = 0

    def add(self, costs: np.ndarray, values: Mapping[str, np.ndarray]) -> None:
        """Take in the steps of one call."""
        for cost in costs.tolist():
            self._sum += cost
        self._count += len(costs)
        for name, decay in self._decays.items():
            total, weight = self._moving[name]
            for value in values[name].tolist():
                total = decay * total + (1 - decay) * value
                weight = decay * weight + (1 - decay)
            self._moving[name] = (total, weight)

    def end_epoch(self) -> dict[str, float]:
        """Mean cost of the epoch as `'cost'`, and the moving averages."""
        found = {"cost": self._sum / self._count} if self._count else {}
        for name, (total, weight) in self._moving.items():
            if weight > 0:
                found[name] = total / weight
        return found

    def begin_epoch(self) -> None:
        """Forget the last epoch's costs."""
        self._sum, self._count = 0.0, 0

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        moving = {name: list(pair) for name, pair in self._moving.items()}
        return {"sum": self._sum, "count": self._count, "moving": moving}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` gave."""
        self._sum, self._count = float(state["sum"]), int(state["count"])
        for name, (total, weight) in state["moving"].items():
            if name in self._moving:
                self._moving[name] = (total, weight)
