"""Search for the steps of a run whose cost, or another number, stands out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from towerpack._core.errors import ConfigError
from towerpack._core.naming import did_you_mean
from towerpack.callbacks.monitors import read_stats
from towerpack.training.state.step_costs import read_step_costs

# Ratios of the standard deviation of normally distributed values to their median and mean absolute
# deviation. The mean serves where more than half of the values are equal.
_OF_MEDIAN: Final = 1.4826
_OF_MEAN: Final = 1.2533
_BLOCK: Final = 1 << 20  # values in the windows that are sorted at once


class Spike(NamedTuple):
    """A step whose number stands out.

    Attributes:
        step: Global step.
        value: The number at this step.
        median: Median of the number in the window around the step.
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

    Args:
        run: A run directory.
        number: Name of a number in `stats.jsonl` to use instead of the cost of each step.
        top: Largest number of steps to return.
        window: Number of consecutive values, around a step, with which its value is compared.

    Raises:
        ConfigError: The run has no such values, or `top` or `window` is too small.
    """
    if top < 1 or window < 3:
        raise ConfigError(f"top must be at least 1 and window at least 3, got {top} and {window}.")
    steps, values = _costs(Path(run)) if number is None else _values(Path(run), number)
    window = min(window, len(values))
    last = len(values) - window
    # Compare every value with a window nearby, then the most distant values with their own windows.
    hop = max(1, window // 4)
    near = ((np.arange(len(values)) - (window - hop) // 2) // hop).clip(0, last // hop)
    medians, scales = _windows(values, np.arange(0, last + 1, hop), window)
    # Costs that stay infinite have a median without distances.
    sudden = np.isinf(values) & ~np.isinf(np.append(0, values[:-1]))
    distances = np.where(sudden, np.inf, np.abs(_distances(values, medians[near], scales[near])))
    size = min(len(values), 1000 + 10 * top)
    chosen = np.sort(np.argpartition(distances, -size)[-size:])
    medians, scales = _windows(values, (chosen - window // 2).clip(0, last), window)
    z = np.where(sudden[chosen], values[chosen], _distances(values[chosen], medians, scales))
    order = np.argsort(-np.abs(z), kind="stable")[:top]
    columns = (steps[chosen], values[chosen], medians, z)
    return [Spike(*row) for row in zip(*(c[order].tolist() for c in columns), strict=True)]


def _costs(run: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps that ran, and their costs."""
    path = run / "step_costs.f32"
    costs = read_step_costs(path) if path.exists() else np.empty(0)
    steps = np.flatnonzero(~np.isnan(costs))
    if not len(steps):
        raise ConfigError(
            f"{run} has no costs of single steps.",
            fix="train with TrainConfig(step_costs=True), or name a number that the run has",
        )
    return steps + 1, costs[steps]


def _values(run: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps at which a number was recorded, and its values."""
    records = read_stats(run / "stats.jsonl") if (run / "stats.jsonl").exists() else []
    pairs = [(record.step, record.scalars.get(name, np.nan)) for record in records]
    steps, values = np.array(pairs, np.float64).reshape(-1, 2).T
    known = ~np.isnan(values)
    if not known.any():
        names = [name for record in records for name in record.scalars]
        raise ConfigError(
            f"{run} has not recorded a number named {name!r}. {did_you_mean(name, names)}",
            fix="choose a name in its stats.jsonl, or omit the name to search the costs of "
            "single steps",
        )
    return steps[known].astype(np.int64), values[known]


def _windows(values: np.ndarray, starts: np.ndarray, window: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the median and the robust standard deviation of each window."""
    views = sliding_window_view(values, window)
    medians, scales = np.empty([2, len(starts)], values.dtype)
    size = max(1, _BLOCK // window)
    for first in range(0, len(starts), size):
        block = slice(first, first + size)
        rows = np.sort(views[starts[block]], axis=1)
        medians[block] = rows[:, window // 2]
        deviations = np.abs(rows - medians[block, None])
        deviations.partition(window // 2, axis=1)
        middle = deviations[:, window // 2]
        average = deviations.mean(axis=1)
        scales[block] = np.where(middle > 0, _OF_MEDIAN * middle, _OF_MEAN * average)
    return medians, scales


def _distances(values: np.ndarray, medians: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Return the distances from medians in robust standard deviations; 0 in constant windows."""
    z = (values - medians) / scales
    return np.where(np.isnan(z), 0, z)
