"""A look inside of a run: a profile of some steps, and weights that are not finite."""

from __future__ import annotations

from typing import Any

import numpy as np

from towerpack._core.errors import ConfigError, NumericsError
from towerpack._core.extras import require
from towerpack._core.logs import get_logger
from towerpack.callbacks._base import Callback

_log = get_logger(__name__)


class GraphProfiler(Callback):
    """Records what TensorFlow does in some steps, for TensorBoard's profile page.

    The trace is in `profile/` of the run directory. A run that is continued later than its first
    step records nothing.

    Args:
        first: The first of the steps; earlier ones compile, so not 1.
        steps: How many.

    Raises:
        ConfigError: A number is not positive.
    """

    def __init__(self, first: int = 20, steps: int = 5) -> None:
        if first < 1 or steps < 1:
            raise ConfigError(f"GraphProfiler(first={first}, steps={steps}).", expected="≥ 1")
        self._before, self._last = first - 1, first - 1 + steps
        self._running = False

    def _profiler(self) -> Any:
        tensorflow = require("tensorflow", extra="tf", needed_for="GraphProfiler")
        return tensorflow.profiler.experimental

    def before_train(self) -> None:
        """Start where the first step is to be recorded."""
        self._start_if_due()

    def trigger_step(self) -> None:
        """Start before the first of the steps, stop after the last."""
        self._start_if_due()
        if self._running and self.global_step >= self._last:
            self._stop()

    def _start_if_due(self) -> None:
        if self.global_step == self._before:
            self._profiler().start(str(self.trainer.run_dir / "profile"))
            self._running = True

    def _stop(self) -> None:
        self._running = False
        self._profiler().stop()
        _log.info("A profile of the steps until %d is in profile/.", self.global_step)

    def after_train(self) -> None:
        """Stop where training ends among the steps."""
        if self._running:
            self._stop()

    def next_stop(self, step: int) -> int | None:
        """Where it starts and stops."""
        return next((at for at in (self._before, self._last) if at > step), None)


class NaNWatch(Callback):
    """Ends the run once a variable of the model is NaN or infinite.

    `CheckNumerics` looks at the cost of each step; statistics and parts that do not reach the cost
    are seen here. Put it first, so that nothing broken is evaluated. (Checkpoints hold no NaN.)
    """

    def trigger(self) -> None:
        """Look at all variables.

        Raises:
            NumericsError: One is not finite.
        """
        weights = self.trainer.get_weights().items()
        floats = {n: np.asarray(w, np.float64) for n, w in weights if w.dtype.kind in "fV"}
        odd = {name: int((~np.isfinite(values)).sum()) for name, values in floats.items()}
        told = [f"{name}: {n} of {floats[name].size}" for name, n in odd.items() if n]
        if told:
            raise NumericsError(
                f"{len(told)} variables hold NaN or infinite values at step {self.global_step}.",
                got="; ".join(told[:10]) + ("; …" if told[10:] else ""),
                expected="finite numbers",
                fix="continue from an earlier checkpoint, TrainConfig(resume=PATH), with a lower "
                "learning rate; for statistics, look for datapoints that are not finite",
            )
