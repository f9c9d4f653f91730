"""Whose turn it is: schedules that mix several flows in exact shares."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from math import gcd, lcm
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError
from towerpack._core.logs import get_logger
from towerpack.dataflow._arguments import given

log = get_logger(__name__)

_FINEST = 1 << 16

Array = NDArray[np.int64]


def whole_weights(weights: Any) -> tuple[int, ...]:
    """Weights as the smallest integers in the same proportion.

    Decimal fractions are taken as they are written: ten times 0.1 are ten equal weights. What would
    need a sum above 65,536 is rounded to that, with a warning.

    Raises:
        ConfigError: They are no positive and finite numbers, or one rounds to nothing.
    """
    try:
        shares = [Fraction(str(weight)) for weight in weights]
    except (TypeError, ValueError):
        shares = [Fraction(0)]
    if any(share <= 0 for share in shares):
        raise ConfigError(
            "These weights do not mix.",
            got=given(weights),
            expected="a list of finite numbers, each more than 0",
        )
    scale = lcm(*(share.denominator for share in shares))
    whole = [int(share * scale) for share in shares]
    total = sum(whole)
    if total > _FINEST * gcd(*whole):
        whole = [round(Fraction(weight * _FINEST, total)) for weight in whole]
        if 0 in whole:
            raise ConfigError(
                f"A weight of {weights[whole.index(0)]} is too small.",
                expected=f"a share of at least 1 in {_FINEST}",
            )
        log.warning("The weights of a mix, %r, are rounded to %s", weights, whole)
    return tuple(weight // gcd(*whole) for weight in whole)


class Turns(NamedTuple):
    """A schedule that repeats itself.

    Attributes:
        whose: For each turn of a period the flow that has it.
        nth: For each turn, how many that flow had before in the period.
        weights: For each flow its turns in a period.
    """

    whose: Array
    nth: Array
    weights: Array

    def locate(self, turns: Array) -> tuple[Array, Array]:
        """Whose these turns are, and how many turns each of those flows had before."""
        periods, rest = np.divmod(turns, len(self.whose))
        whose = self.whose[rest]
        return whose, periods * self.weights[whose] + self.nth[rest]

    def taken(self, turns: int) -> Array:
        """How many of the first `turns` turns each flow has had."""
        periods, rest = divmod(turns, len(self.whose))
        return periods * self.weights + np.bincount(self.whose[:rest], minlength=len(self.weights))

    def turn_of(self, flow: int, nth: int) -> int:
        """When a flow has its turn number `nth`, from 0."""
        periods, rest = divmod(nth, int(self.weights[flow]))
        return periods * len(self.whose) + int(np.flatnonzero(self.whose == flow)[rest])


@lru_cache(maxsize=64)
def even_turns(weights: tuple[int, ...]) -> Turns:
    """The schedule in which flow i has `weights[i]` turns of every `sum(weights)`.

    Weighted round-robin by earliest deadline: turn n of a flow with weight w of W may come from
    turn `n * W / w` on and must have come by turn `(n + 1) * W / w`; of two with one deadline the
    earlier comes first. So after any number of turns each flow has had its share of them to within
    one turn (proportionate progress: Baruah et al. 1996).

    Args:
        weights: Integers, not all 0: a flow with weight 0 has no turn.
    """
    weights = tuple(weight // gcd(*weights) for weight in weights)
    period = sum(weights)
    had = [0] * len(weights)
    whose: list[int] = []
    nth: list[int] = []
    for turn in range(period):
        *_, chosen = min(
            (-((had[flow] + 1) * period // -weight), had[flow] / weight, flow)
            for flow, weight in enumerate(weights)
            if weight and had[flow] * period // weight <= turn
        )
        whose.append(chosen)
        nth.append(had[chosen])
        had[chosen] += 1
    return Turns(*(np.array(numbers, np.int64) for numbers in (whose, nth, weights)))


class EvenMix:
    """Which position of which flow each position of a mix is.

    Args:
        sizes: Of the flows; `None` is infinite.
        weights: Integers.
        stop_first: Whether the mix ends with the first flow that does.

    Attributes:
        size: Datapoints in the mix; `None` is infinite.
    """

    def __init__(
        self, sizes: Sequence[int | None], weights: Sequence[int], *, stop_first: bool
    ) -> None:
        left = list(weights)  # 0 for flows that have ended
        given = np.zeros(len(sizes), np.int64)
        # Stretches in which the same flows take turns: where each begins, how much each flow gave
        # before, whose turns they are.
        self._phases: list[tuple[int, Array, Turns]] = []
        self.size: int | None = 0
        while any(left):
            turns = even_turns(tuple(left))
            self._phases.append((self.size, given.copy(), turns))
            # For each flow the first turn at which it has nothing left.
            ends = {
                turns.turn_of(flow, size - int(given[flow])): flow
                for flow, size in enumerate(sizes)
                if size is not None and left[flow]
            }
            if not ends:
                self.size = None
                break
            end = min(ends)
            given += turns.taken(end)
            self.size += end
            left[ends[end]] = 0
            if stop_first:
                break
        self._starts = [start for start, _, _ in self._phases]

    def locate(self, epoch: int, positions: Array) -> tuple[Array, Array]:
        """For each position the flow, and the position in it."""
        flows, local = np.empty_like(positions), np.empty_like(positions)
        which = np.searchsorted(self._starts, positions, side="right") - 1
        for index in cast("list[int]", np.unique(which).tolist()):
            start, before, turns = self._phases[index]
            here = which == index
            flows[here], nth = turns.locate(positions[here] - start)
            local[here] = before[flows[here]] + nth
        return flows, local
