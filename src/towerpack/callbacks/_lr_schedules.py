"""Learning-rate schedules in one line each.

Each gives a `ScheduledHyperParamSetter` by steps, whose lines are drawn inside the compiled loop. A
curve is drawn as 100 straight lines. Common arguments:

    peak: The highest value.
    steps: Of the whole run, warm-up included.
    end: The value after the last step.
    warmup: Steps of a line up to `peak`: the first step is run with `peak / warmup`, the last one
        with `peak`.
    param: Name of the hyper-parameter.

All raise ConfigError where a number makes no sense, or the warm-up leaves no step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Final

from towerpack._core.errors import ConfigError
from towerpack.callbacks._schedule import ScheduledHyperParamSetter

_PIECES: Final = 100
_LR: Final = "learning_rate"


def warmup_schedule(peak: float, warmup: int, *, param: str = _LR) -> ScheduledHyperParamSetter:
    """A line up to `peak`, which then stays (Goyal et al. 2017, section 2.2)."""
    return piecewise_schedule([(0, peak)], warmup=warmup, param=param)


def piecewise_schedule(
    points: Iterable[tuple[int, float]], *, warmup: int = 0, param: str = _LR
) -> ScheduledHyperParamSetter:
    """Constant pieces, after a warm-up.

    Args:
        points: `(step, value)`: the value from after so many steps on; the first at step 0, the
            second after the warm-up.
        warmup: Steps of a line up to the first value.
        param: Name of the hyper-parameter.
    """
    given = [(int(step), float(value)) for step, value in points]
    steps = [step for step, _ in given]
    if not given or steps[0] != 0 or any(b <= a for a, b in pairwise(steps)):
        raise ConfigError(
            f"piecewise_schedule({given}) makes no sense.",
            expected="points (step, value) with rising steps, the first at 0",
        )
    _check("piecewise_schedule", given[0][1], steps[1] if given[1:] else None, warmup)
    table = {warmup: given[0][1]}
    for (_, before), (step, after) in pairwise(given):
        # A jump is a line over one step.
        table |= {step - 1: before, step: after}
    return _setter(param, _rising(given[0][1], warmup) | table)


def cosine_schedule(
    peak: float, steps: int, *, end: float = 0.0, warmup: int = 0, param: str = _LR
) -> ScheduledHyperParamSetter:
    """Half a cosine from `peak` to `end`, after a warm-up (Loshchilov & Hutter 2017, SGDR)."""
    _check("cosine_schedule", peak, steps, warmup)
    falling = _curve(lambda share: end + (peak - end) * _cosine(share), warmup, steps)
    return _setter(param, _rising(peak, warmup) | falling)


def polynomial_schedule(
    peak: float,
    steps: int,
    *,
    power: float = 1.0,
    end: float = 0.0,
    warmup: int = 0,
    param: str = _LR,
) -> ScheduledHyperParamSetter:
    """`end + (peak - end) * (1 - share) ** power`, after a warm-up; a straight line for power 1.

    A power of 0.9 is usual in segmentation (Chen et al. 2017, DeepLab).
    """
    _check("polynomial_schedule", peak, steps, warmup)
    if not power > 0:
        raise ConfigError(f"polynomial_schedule(power={power}).", expected="more than 0")
    falling = _curve(lambda share: end + (peak - end) * (1 - share) ** power, warmup, steps)
    return _setter(param, _rising(peak, warmup) | falling)


def one_cycle_schedule(
    peak: float,
    steps: int,
    *,
    rise: float = 0.3,
    start: float | None = None,
    end: float | None = None,
    param: str = _LR,
) -> ScheduledHyperParamSetter:
    """Half a cosine up and half a cosine down (Smith & Topin 2018, super-convergence).

    It rises in the share `rise` of the steps, from `start` (None for `peak / 25`), and falls to
    `end` (None for `peak / 250_000`).
    """
    low = peak / 25 if start is None else start
    last = peak / 250_000 if end is None else end
    top = round(rise * steps)
    if not 0 < top < steps:
        raise ConfigError(
            f"one_cycle_schedule(steps={steps}, rise={rise}) makes no sense.",
            expected="a share that leaves steps to rise and steps to fall",
        )
    _check("one_cycle_schedule", peak, steps, 0)
    up = _curve(lambda share: peak + (low - peak) * _cosine(share), 0, top)
    down = _curve(lambda share: last + (peak - last) * _cosine(share), top, steps)
    return _setter(param, up | down)


def _cosine(share: float) -> float:
    """From 1 to 0."""
    return (1 + math.cos(math.pi * share)) / 2


def _check(who: str, peak: float, steps: int | None, warmup: int) -> None:
    if not 0 < peak < math.inf:
        raise ConfigError(f"{who}: {peak} is no learning rate.", expected="more than 0, and finite")
    if warmup < 0 or (steps is not None and warmup >= steps):
        raise ConfigError(
            f"{who}: a warm-up of {warmup} steps makes no sense.",
            expected="at least 0" if steps is None else f"from 0 to {steps - 1} steps",
        )


def _rising(peak: float, warmup: int) -> dict[int, float]:
    return {0: peak / warmup, warmup - 1: peak} if warmup else {}


def _curve(value: Callable[[float], float], first: int, last: int) -> dict[int, float]:
    at: Sequence[int] = [first + round((last - first) * i / _PIECES) for i in range(_PIECES + 1)]
    return {step: value((step - first) / (last - first)) for step in at}


def _setter(param: str, table: dict[int, float]) -> ScheduledHyperParamSetter:
    return ScheduledHyperParamSetter(param, sorted(table.items()), "linear", step_based=True)
