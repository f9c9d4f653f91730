"""Whose turn it is: schedules that mix several flows in exact shares.

`even_turns` is the chairman assignment of Tijdeman (1980): after any number of turns, each flow has
had its share of them to within one turn, which picking the one furthest behind does not achieve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from math import gcd, inf, lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError
from towerpack._core.logs import get_logger

log = get_logger(__name__)

_FINEST = 1 << 16

Array = NDArray[np.int64]


def whole_weights(weights: Sequence[float]) -> tuple[int, ...]:
    """Weights as the smallest integers in the same proportion.

    Decimal fractions are taken as they are written: ten times 0.1 are ten equal weights. What would
    need a sum above 65,536 is rounded to that, with a warning.

    Raises:
        ConfigError: A weight is not positive and finite, or rounds to nothing.
    """
    for weight in weights:
        if not _mixes(weight):
            raise ConfigError(
                f"A weight of {weight!r:.80} does not mix.",
                expected="a number, more than 0 and finite",
            )
    exact = [Fraction(str(weight)) for weight in weights]
    scale = lcm(*(share.denominator for share in exact))
    whole = [int(share * scale) for share in exact]
    whole = [weight // gcd(*whole) for weight in whole]
    return tuple(whole) if sum(whole) <= _FINEST else _rounded(whole)


def _mixes(weight: Any) -> bool:
    try:
        own = np.ndim(weight) == 0 and not isinstance(weight, (bool, np.bool_))
        return own and bool(0 < weight < inf)
    except TypeError:
        return False


def _rounded(weights: Sequence[int]) -> tuple[int, ...]:
    """The same proportion in 65,536 parts, to the nearest."""
    total = sum(weights)
    borders = [0]
    for weight in weights:
        borders.append(borders[-1] + weight)
    parts = [
        (_FINEST * high + total // 2) // total - (_FINEST * low + total // 2) // total
        for low, high in pairwise(borders)
    ]
    if 0 in parts:
        raise ConfigError(
            f"A weight of {weights[parts.index(0)]} in {total} is too small.",
            expected=f"a share of at least 1 in {_FINEST}",
        )
    off = max(
        abs(weight / total - part / _FINEST) for weight, part in zip(weights, parts, strict=True)
    )
    log.warning(
        "The weights of a mix are rounded to parts of %d: one share is off by a datapoint in %.0f",
        _FINEST,
        1 / off,
    )
    return tuple(part // gcd(*parts) for part in parts)


@dataclass(frozen=True)
class Turns:
    """A schedule that repeats itself.

    Attributes:
        whose: For each turn of a period the flow that has it.
        nth: For each turn, how many that flow had before in the period.
        weights: For each flow its turns in a period.
    """

    whose: Array
    nth: Array
    weights: Array

    @property
    def period(self) -> int:
        """After how many turns it begins again."""
        return len(self.whose)

    def locate(self, turns: Array) -> tuple[Array, Array]:
        """Whose these turns are, and how many turns each of those flows had before."""
        periods, rest = np.divmod(turns, self.period)
        whose = self.whose[rest]
        return whose, periods * self.weights[whose] + self.nth[rest]

    def locate_one(self, turn: int) -> tuple[int, int]:
        """`locate` for a single turn."""
        periods, rest = divmod(turn, self.period)
        whose = int(self.whose[rest])
        return whose, periods * int(self.weights[whose]) + int(self.nth[rest])

    def taken(self, turns: int) -> Array:
        """How many of the first `turns` turns each flow has had."""
        periods, rest = divmod(turns, self.period)
        return periods * self.weights + np.bincount(self.whose[:rest], minlength=len(self.weights))

    def turn_of(self, flow: int, nth: int) -> int:
        """When a flow has its turn number `nth`, from 0."""
        periods, rest = divmod(nth, int(self.weights[flow]))
        return periods * self.period + int(np.flatnonzero(self.whose == flow)[rest])


@lru_cache(maxsize=64)
def even_turns(weights: tuple[int, ...]) -> Turns:
    """The schedule in which flow i has `weights[i]` turns of every `sum(weights)`.

    Args:
        weights: Positive integers.
    """
    shares = [weight // gcd(*weights) for weight in weights]
    period = sum(shares)
    # Tijdeman's bounds are multiples of 1 / (2 flows - 2): in these units all numbers are whole.
    unit = max(2, 2 * len(shares) - 2)
    owed, had = [0] * len(shares), [0] * len(shares)
    whose: list[int] = []
    nth: list[int] = []
    for _ in range(period):
        chosen, least = 0, inf
        for flow, share in enumerate(shares):
            owed[flow] += share * unit
            # Of the flows that are owed enough, the one that would be owed too much first.
            time_left = (period * (unit - 1) - owed[flow]) / share
            if owed[flow] >= period and time_left < least:
                chosen, least = flow, time_left
        whose.append(chosen)
        nth.append(had[chosen])
        owed[chosen] -= period * unit
        had[chosen] += 1
    return Turns(*(np.array(numbers, np.int64) for numbers in (whose, nth, shares)))
