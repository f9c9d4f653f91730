"""Search for a learning rate: raise the learning rate during a short run."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np

from towerpack._core.errors import ConfigError
from towerpack._core.extras import require
from towerpack._core.files import csv_of, replace_file
from towerpack._core.logs import get_logger
from towerpack._core.pictures import png
from towerpack._display.figures import draw_rates, pixels_of
from towerpack.callbacks._base import Callback
from towerpack.callbacks._host import TrainerHost

_log = get_logger(__name__)
_DECAY: Final = 0.9
_FIRST: Final = 10
"""Number of first steps, from which the initial level and the noise of the cost are estimated."""
_DIVERGED: Final = 4.0
"""Ratio of the smoothed cost to its minimum, or of a cost to the first costs, that ends a run."""


class LearningRateFinder(Callback):
    """Increase the learning rate at each step, and plot the cost over the learning rate.

    Smith 2017, "Cyclical learning rates", section 3.3. The weights are unusable afterwards, so use
    a new run without `ModelSaver`. It ends after `steps`, or once the cost grows. `lr-finder.csv`
    and `lr-finder.png` are then in the run directory.

        finder = LearningRateFinder()
        SimpleTrainer(TrainConfig(dataflow=…, model=…, callbacks=[finder], run_dir="find")).train()

    Args:
        low, high: Learning rates of the first and the last step.
        steps: Number of steps. Each multiplies the learning rate by the same factor.

    Raises:
        ConfigError: An argument is out of range.
        MissingExtraError: Matplotlib is not installed.

    Attributes:
        costs: Costs of the steps that were run.
        suggestion: After training, the learning rate at which half of the decrease of the cost was
            reached; None if the cost did not decrease.
    """

    acts_between_steps = True

    def __init__(self, low: float = 1e-6, high: float = 10.0, steps: int = 200) -> None:
        if not 0 < low < high < math.inf or steps < 2 * _FIRST:
            raise ConfigError(
                f"LearningRateFinder needs 0 < low < high and at least {2 * _FIRST} steps, got "
                f"low={low}, high={high} and steps={steps}."
            )
        self._low, self._high, self._steps = low, high, steps
        self.costs: list[float] = []
        self._smooth: list[float] = []
        self._ended = False  # whether this callback has ended the run
        self.suggestion: float | None = None

    @property
    def rates(self) -> list[float]:
        """Learning rates of the steps that were run."""
        return [self._rate(i) for i in range(len(self.costs))]

    def _rate(self, i: int) -> float:
        return self._low * (self._high / self._low) ** (i / (self._steps - 1))

    def setup(self, trainer: TrainerHost) -> None:
        require("matplotlib", extra="demo", needed_for="The learning-rate finder's curve")
        self.fetch("cost")

    def sets(self) -> Mapping[str, Collection[int] | None]:
        return {"learning_rate": None}

    def before_train(self) -> None:
        if self.global_step != len(self.costs):
            raise ConfigError(
                f"LearningRateFinder needs a new run, because it makes the weights unusable, but "
                f"{self.trainer.run_dir} has been trained for {self.global_step} steps.",
                fix="use a new run directory, and remove LearningRateFinder for the real training",
            )

    def before_step(self) -> None:
        self.trainer.hyper_param("learning_rate").set(self._rate(len(self.costs)))

    def after_step(self, outputs: Mapping[str, Any]) -> None:
        self._add(float(outputs["cost"]))
        smooth, rate = self._smooth, self._rate(len(self.costs) - 1)
        grown = max(self.costs[:_FIRST]) < self.costs[-1] / _DIVERGED
        self._ended = True
        if len(self.costs) >= self._steps:
            self.trainer.request_stop(f"the learning rate has reached {self._high:g}")
        elif grown or not smooth[-1] <= _DIVERGED * abs(min(smooth)):
            self.trainer.request_stop(f"the cost grows at a learning rate of {rate:.3g}")
        else:
            self._ended = False

    def after_train(self) -> None:
        done = len(self.costs)
        if 0 < done < self._steps and not self._ended:
            _log.warning(
                "%r: the run ended after %d of %d steps, at learning rate %.3g. Train for more "
                "epochs, or pass fewer steps.", self, done, self._steps, self._rate(done - 1)
            )  # fmt: skip
        if done <= _FIRST:
            return
        self.suggestion = half_way(self.rates, self.costs, self._smooth)
        curves = self.rates, self.costs, self._smooth
        table, picture = (self.trainer.run_dir / f"lr-finder.{end}" for end in ("csv", "png"))
        rows = [("learning_rate", "cost", "smoothed"), *zip(*curves, strict=True)]
        replace_file(table, csv_of(rows))
        replace_file(picture, png(pixels_of(draw_rates(*curves, self.suggestion))))
        best = self.suggestion
        text = "none (the cost did not decrease)" if best is None else f"{best:.3g}"
        _log.info("Suggested learning rate: %s. The curve is in %s.", text, picture)

    def _add(self, cost: float) -> None:
        count = len(self.costs)
        before = self._smooth[-1] * (1 - _DECAY**count) if count else 0.0
        self._smooth.append((_DECAY * before + (1 - _DECAY) * cost) / (1 - _DECAY ** (count + 1)))
        self.costs.append(cost)

    def state(self) -> dict[str, Any]:
        return {"costs": self.costs}

    def restore(self, state: Any) -> None:
        for cost in state["costs"]:
            self._add(float(cost))


def half_way(
    rates: Sequence[float], costs: Sequence[float], smoothed: Sequence[float]
) -> float | None:
    """Return the last learning rate at which the smoothed cost is above half of its decrease.

    Return None if the decrease is not larger than the noise of the first costs.
    """
    first, smooth = np.asarray(costs[:_FIRST]), np.asarray(smoothed)
    lowest = _FIRST + int(np.nanargmin(smooth[_FIRST:]))
    fall = first.mean() - smooth[lowest]
    above = np.flatnonzero(smooth[:lowest] > smooth[lowest] + fall / 2)
    noise = first.std() + 1e-6 * abs(first.mean())
    return rates[int(above[-1])] if fall > noise and above.size else None
