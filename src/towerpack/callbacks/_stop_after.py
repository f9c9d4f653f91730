"""The end of a training after some time."""

from __future__ import annotations

import time as _time
from collections.abc import Callable
from typing import Any

from towerpack._core.errors import ConfigError
from towerpack.callbacks._base import Callback


class StopAfter(Callback):
    """Ends training normally after a time, or a number of steps, whichever comes first.

    Args:
        time: Seconds from the first step on, evaluation and saving included. A run that was
            interrupted goes on with what it had used when it was saved.
        steps: Global steps.
        clock: Gives seconds.

    Raises:
        ConfigError: Neither is given, or one is not positive.
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
                f"StopAfter(time={time}, steps={steps}) makes no sense.",
                expected="seconds or steps, more than 0",
            )
        self._time, self._steps = time, steps
        self._clock = clock
        self._used = 0.0
        self._started: float | None = None

    def _seconds(self) -> float:
        return self._used + (0.0 if self._started is None else self._clock() - self._started)

    def before_train(self) -> None:
        """Start the clock; a run that had ended here does not start again."""
        self._started = self._clock()
        self._stop_if_due()

    def after_call(self) -> None:
        """Look at the clock."""
        self._stop_if_due()

    def trigger(self) -> None:
        """Look at the clock after what other callbacks did, too."""
        self._stop_if_due()

    def _stop_if_due(self) -> None:
        if self._steps is not None and self.trainer.global_step >= self._steps:
            self.trainer.request_stop(f"{self.trainer.global_step} steps are done")
        elif self._time is not None and self._seconds() >= self._time:
            self.trainer.request_stop(f"{self._seconds():.0f} s have passed")

    def next_stop(self, step: int) -> int | None:
        """The last step."""
        return self._steps if self._steps is not None and step < self._steps else None

    def state(self) -> dict[str, Any]:
        """Seconds used."""
        return {"seconds": self._seconds()}

    def restore(self, state: Any) -> None:
        """Take them back."""
        self._used = float(state["seconds"])
