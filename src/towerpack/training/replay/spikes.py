"""Search for the steps of a run whose cost, or another number, stands out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from towerpack._core.errors import ConfigError
from towerpack.callbacks.monitors import read_stats
from towerpack.training.state.step_costs import read_step_costs

# Ratios of the standard deviation of normally distributed values to their median and mean absolute
# deviation. The mean serves where more than half of the values are equal.
_OF_MEDIAN: Final = 1.4826
_OF_MEAN: Final = 1.2533


class Spike(NamedTuple):
    """A step whose number stands out.

    Attributes:
        step: Global step.
        value: The number at this step.
        median: Median of the number in the window with the step.
        z: Distance from the median, in robust standard deviations (1.4826 times the median absolute
            deviation) of the window. Negative below the median.
    """

    step: int
    value: float
    median: float
    z: float


@np.errstate(invalid="ignore", divide="ignore")
def spikes(
    run: str | os.PathLike[str], *, number: str | None = None, top: int = 10, window: int = 101
) -> list[Spike]:
    """Return the steps of a run whose cost stands out most: those with the largest `abs(z)`.

    Of consecutive infinite values, only the first stands out.

    Args:
        run: A run directory.
        number: Name of a number in `stats.jsonl` to use instead of the cost of each step.
        top: Largest number of steps to return.
        window: Number of consecutive values that are compared with each other.

    Raises:
        ConfigError: The run has no such values, or `top` or `window` is too small.
    """
    if top < 1 or window < 3:
        raise ConfigError(f"top must be at least 1 and window at least 3, got {top} and {window}.")
    steps, values = _series(Path(run), number)
    window = min(window, len(values))
    # The last window begins with values of the one before, so that it is complete.
    whole = len(values) - len(values) % window
    last = values[-window:] if whole < len(values) else values[:0]
    windows = np.concatenate([values[:whole], last])
    medians, scales = _centers(windows.reshape(-1, window))
    places = np.arange(len(values)) // window
    z = (values - medians[places]) / scales[places]
    infinite = np.isinf(values)
    z = np.where(infinite | np.isnan(z), 0, z)
    first = infinite & ~np.append(False, infinite[:-1])
    z[first] = values[first]
    largest = np.argpartition(-np.abs(z), min(top, len(z)) - 1)[:top].tolist()
    largest.sort(key=lambda i: (-abs(z[i]), i))
    return [
        Spike(int(steps[i]), *map(float, (values[i], medians[places[i]], z[i]))) for i in largest
    ]


def _series(run: Path, number: str | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps with a value, and the values."""
    file = run / ("step_costs.f32" if number is None else "stats.jsonl")
    if not file.exists():
        steps = values = np.empty(0)
    elif number is None:
        values = read_step_costs(file)
        steps = np.arange(1, len(values) + 1)
    else:
        pairs = [(record.step, record.scalars.get(number, np.nan)) for record in read_stats(file)]
        steps, values = np.array(pairs, np.float64).reshape(-1, 2).T
    known = ~np.isnan(values)
    if not known.any():
        raise ConfigError(
            f"{run} has no {'costs of single steps' if number is None else repr(number)}.",
            fix="train with TrainConfig(step_costs=True), or name a number in its stats.jsonl",
        )
    return steps[known], values[known]


def _centers(windows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the median and the robust standard deviation of each window."""
    middle = windows.shape[1] // 2
    medians = np.partition(windows, middle, axis=1)[:, middle]
    deviations = np.abs(windows - medians[:, None])
    average = deviations.mean(axis=1)
    deviations.partition(middle, axis=1)
    scale = deviations[:, middle]
    return medians, np.where(scale > 0, _OF_MEDIAN * scale, _OF_MEAN * average)
