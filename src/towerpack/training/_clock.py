"""Where the time of an epoch goes."""

from __future__ import annotations

import time
from collections.abc import Callable


class EpochClock:
    """Adds up, for one epoch, what was computed and what was waited for.

    Args:
        now: A monotonic clock in seconds.
    """

    NAMES = ("throughput/steps_per_s", "time/compute_share", "time/data_wait_share")

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self.reset()

    def reset(self) -> None:
        """A new epoch begins."""
        self._began = self._now()
        self._waited_s = 0.0
        self._ran_s = 0.0
        self._steps = 0

    def waited(self, seconds: float) -> None:
        """The loop waited for data."""
        self._waited_s += seconds

    def ran(self, steps: int, seconds: float) -> None:
        """The loop ran steps."""
        self._steps += steps
        self._ran_s += seconds

    def report(self) -> dict[str, float]:
        """Numbers for the monitors; empty before the first step."""
        total = self._now() - self._began
        if self._steps == 0 or total <= 0:
            return {}
        values = (self._steps / total, self._ran_s / total, self._waited_s / total)
        return dict(zip(self.NAMES, values, strict=True))
