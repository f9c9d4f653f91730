"""Several flows in turns: in chosen shares, or in a random order."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from math import gcd, lcm
from typing import Any, Literal, NamedTuple, cast

import numpy as np

from towerpack._core.errors import ConfigError, DataFlowError
from towerpack._core.logs import get_logger
from towerpack._core.randomness import derive_seed
from towerpack.dataflow._flow import DataFlow, length_of, require_flows
from towerpack.dataflow._iteration_state import State, Stream, check_count, inner_state
from towerpack.dataflow._permutation import permute
from towerpack.dataflow._plan import Node
from towerpack.dataflow.arguments import given
from towerpack.dataflow.datapoints import Datapoint
from towerpack.dataflow.pipeline_names import Length, pipeline_of
from towerpack.dataflow.stage_context import StageContext
from towerpack.dataflow.stages._concat_and_join import (
    Array,
    Combination,
    CombinedStream,
    LocatedNode,
)
from towerpack.dataflow.stages._repeat import RepeatedData

log = get_logger(__name__)

_FINEST = 1 << 16

Stop = Literal["first", "all", "repeat"]


def whole_weights(weights: Any) -> tuple[int, ...]:
    """Weights as the smallest integers in proportion; decimal fractions as they are written."""
    try:
        shares = [Fraction(str(weight)) for weight in weights]
    except (TypeError, ValueError):
        shares = [Fraction(0)]
    if any(share <= 0 for share in shares):
        raise ConfigError("Weights are finite numbers, each more than 0.", got=given(weights))
    scale = lcm(*(share.denominator for share in shares))
    whole = [int(share * scale) for share in shares]
    total = sum(whole)
    if total > _FINEST * gcd(*whole):
        whole = [max(1, round(Fraction(weight * _FINEST, total))) for weight in whole]
        log.warning("The weights of a mix, %r, are rounded to %s", weights, whole)
    return tuple(weight // gcd(*whole) for weight in whole)


class Turns(NamedTuple):
    """A schedule that repeats itself."""

    whose: Array  # for each turn of a period the flow that has it
    nth: Array  # for each turn, how many that flow had before in the period
    weights: Array  # for each flow its turns in a period


@lru_cache(maxsize=64)
def even_turns(weights: tuple[int, ...]) -> Turns:
    """The schedule in which flow i has `weights[i]` turns of every `sum(weights)`.

    By earliest deadline: turn n of a flow with weight w of W may come from turn `n * W / w` on and
    must have come by turn `(n + 1) * W / w`; of two with one deadline the earlier comes first. So
    each flow always has had its share to within one turn (Baruah et al. 1996, proportionate
    progress). A flow with weight 0 has no turn.
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
    """Which position of which flow each position of a mix is; it may end with the first flow."""

    def __init__(
        self, sizes: Sequence[int | None], weights: Sequence[int], *, stop_first: bool
    ) -> None:
        left = list(weights)  # 0 for flows that have ended
        given = np.zeros(len(sizes), np.int64)
        # Where the same flows take turns: its begin, what each gave before, whose turns they are.
        self._phases: list[tuple[int, Array, Turns]] = []
        self.size: int | None = 0
        while any(left):
            turns = even_turns(tuple(left))
            period = len(turns.whose)
            self._phases.append((self.size, given.copy(), turns))
            ends: dict[int, int] = {}  # for each flow the first turn at which it has nothing left
            for flow, size in enumerate(sizes):
                if size is not None and left[flow]:
                    periods, rest = divmod(size - int(given[flow]), int(turns.weights[flow]))
                    in_period = np.flatnonzero(turns.whose == flow)
                    ends[periods * period + int(in_period[rest])] = flow
            if not ends:
                self.size = None
                break
            end = min(ends)
            self.size += end
            periods, rest = divmod(end, period)
            given += periods * turns.weights
            given += np.bincount(turns.whose[:rest], minlength=len(sizes))
            left[ends[end]] = 0
            if stop_first:
                break
        self._starts = [start for start, _, _ in self._phases]

    def locate(self, epoch: int, positions: Array) -> tuple[Array, Array]:
        flows, local = np.empty_like(positions), np.empty_like(positions)
        which = np.searchsorted(self._starts, positions, side="right") - 1
        for index in cast("list[int]", np.unique(which).tolist()):
            start, before, turns = self._phases[index]
            here = which == index
            periods, rest = np.divmod(positions[here] - start, len(turns.whose))
            flows[here] = whose = turns.whose[rest]
            local[here] = before[whose] + periods * turns.weights[whose] + turns.nth[rest]
        return flows, local


class MixData(Combination):
    """Take turns between flows, so that each has its share of every stretch of the mix.

    The order of turns is fixed, and as even as can be: of the first n datapoints, for any n, a flow
    with share w has given w * n, to within one. Shuffle the flows, not the mix. Shares whose
    smallest integers in proportion sum up to more than 65,536 are rounded, with a warning.

    Contract: each flow in its own order; length by `stop`; not random; thread- and fork-safe as the
    flows are; resumable as they are, at once if all are indexable.

    Args:
        weights: The shares, in any unit; equal ones by default.
        stop: When a pass ends: when the "first" flow has nothing left for its turn; when "all" have
            been read once, those that remain keeping the proportion of their weights; or never,
            where "repeat" has each flow repeated for ever.
    """

    def __init__(
        self,
        flows: Sequence[DataFlow],
        weights: Sequence[float] | None = None,
        *,
        stop: Stop = "first",
    ) -> None:
        super().__init__(flows)
        if stop not in ("first", "all", "repeat"):
            raise ConfigError(f"There is no stop={stop!r}.", expected='"first", "all" or "repeat"')
        self.weights = whole_weights([1] * len(self.flows) if weights is None else weights)
        if len(self.weights) != len(self.flows):
            found = f"{len(self.flows)} flows were given {len(self.weights)} weights."
            raise ConfigError(found, expected="a weight for each flow")
        if stop == "repeat":
            self.flows = [RepeatedData(flow) for flow in self.flows]
        self.stop: Stop = stop

    def length(self) -> Length:
        lengths = [length_of(flow) for flow in self.flows]
        if None in lengths:
            return None
        size = self._mix([n if isinstance(n, int) else None for n in lengths]).size
        return float("inf") if size is None else size

    def identity(self) -> str:
        return f"{':'.join(map(str, self.weights))}, {self.stop}"

    def combine(self, nodes: list[Node], context: StageContext) -> Node:
        mix = self._mix([node.size for node in nodes])
        return LocatedNode(nodes, mix.size, mix.locate)

    def open(self, context: StageContext, epoch: int, state: State) -> Stream:
        return MixStream(self, context, epoch, state)

    def _mix(self, sizes: Sequence[int | None]) -> EvenMix:
        return EvenMix(sizes, self.weights, stop_first=self.stop != "all")


class RandomChooseData(MixData):
    """`MixData` with the arguments of Tensorpack; turns are even rather than drawn at random.

    Contract: as `MixData`; ends when a flow has nothing left for its turn.

    Args:
        df_lists: Flows, or pairs of a flow and its probability. These need not sum to one.
    """

    def __init__(self, df_lists: Sequence[DataFlow] | Sequence[tuple[DataFlow, float]]) -> None:
        if isinstance(df_lists, DataFlow):
            require_flows(df_lists, self)
        pairs: list[Any] = [one if isinstance(one, (tuple, list)) else (one, 1) for one in df_lists]
        super().__init__([flow for flow, _ in pairs], [weight for _, weight in pairs])


class MixStream(CombinedStream):
    def __init__(self, flow: MixData, context: StageContext, epoch: int, state: State) -> None:
        super().__init__(flow.open_inputs(context, epoch, inner_state(state)))
        self._stop_first = flow.stop != "all"
        self._weights = list(flow.weights)  # 0 for those that have ended
        self._gone: list[int] = [] if state is None else list(state["gone"])
        self._turn: int = 0 if state is None else state["turn"]
        for ended in self._gone:
            self._weights[ended] = 0
        self._whose = self._turns()

    def __next__(self) -> Datapoint:
        while self._whose:
            flow = self._whose[self._turn % len(self._whose)]
            try:
                datapoint = next(self.streams[flow])
            except StopIteration:
                if self._stop_first:
                    raise
                self._gone = [*self._gone, flow]
                self._weights[flow] = self._turn = 0
                self._whose = self._turns()
            else:
                self._turn += 1
                return datapoint
        raise StopIteration

    def state(self) -> State:
        return {"gone": self._gone, "turn": self._turn, "inner": self.inner_states()}

    def _turns(self) -> list[int]:
        left = any(self._weights)
        return even_turns(tuple(self._weights)).whose.tolist() if left else []


class RandomMixData(Combination):
    """All datapoints of several flows, which take turns in a random order that is new in each pass.

    Every interleaving is equally likely, so each flow is spread evenly over the pass, whatever its
    length. The order of a pass takes 16 bytes of memory per datapoint.

    Contract: as `MixData`, but random, and as long as all flows together.

    Args:
        df_lists: One or more flows of known length.

    Raises:
        ConfigError: A length is not known, or infinite.
        DataFlowError: A flow is shorter than its length says; raised while iterating.
    """

    random = True

    def __init__(self, df_lists: Sequence[DataFlow]) -> None:
        super().__init__(df_lists)
        for flow in self.flows:
            if not isinstance(length_of(flow), int):
                raise ConfigError(f"The length of {flow} is infinite or not known: see MixData.")

    def length(self) -> Length:
        return sum(map(len, self.flows))

    def identity(self) -> str:
        return ", ".join(str(len(flow)) for flow in self.flows)

    def combine(self, nodes: list[Node], context: StageContext) -> Node:
        mix = RandomMix(list(map(len, self.flows)), context.key(self))
        return LocatedNode(nodes, mix.size, mix.locate)

    def open(self, context: StageContext, epoch: int, state: State) -> Stream:
        return RandomMixStream(self, context, epoch, state)


class RandomMix:
    """Which position of which flow each position of a random mix is."""

    def __init__(self, sizes: Sequence[int], key: int) -> None:
        self.size = sum(sizes)
        self._ends = np.cumsum(sizes)
        self._key = key
        self._last: tuple[int, Array, Array] | None = None

    def order(self, epoch: int) -> tuple[Array, Array]:
        last = self._last
        if last is None or last[0] != epoch:
            where = np.arange(self.size, dtype=np.int64)
            drawn = permute(where, self.size, derive_seed(self._key, epoch))
            flows = np.searchsorted(self._ends, drawn, side="right")
            local = np.empty_like(where)
            local[np.argsort(flows, kind="stable")] = where
            starts = np.concatenate(([0], self._ends[:-1]))
            # One assignment: safe between threads.
            self._last = last = epoch, flows, local - starts[flows]
        return last[1:]

    def locate(self, epoch: int, positions: Array) -> tuple[Array, Array]:
        flows, local = self.order(epoch)
        return flows[positions], local[positions]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None}


class RandomMixStream(CombinedStream):
    def __init__(
        self, flow: RandomMixData, context: StageContext, epoch: int, state: State
    ) -> None:
        super().__init__(flow.open_inputs(context, epoch, inner_state(state)))
        self._flows = flow.flows
        mix = RandomMix(list(map(len, flow.flows)), context.key(flow))
        self._whose, _ = mix.order(epoch)
        self._position = check_count(None if state is None else state["position"], mix.size)

    def __next__(self) -> Datapoint:
        if self._position >= len(self._whose):
            raise StopIteration
        index = int(self._whose[self._position])
        try:
            datapoint = next(self.streams[index])
        except StopIteration:
            ended = self._flows[index]
            problem = f"{pipeline_of(ended)} ended before its length, {len(ended)}."
            raise DataFlowError(problem) from None
        self._position += 1
        return datapoint

    def state(self) -> State:
        return {"position": self._position, "inner": self.inner_states()}
