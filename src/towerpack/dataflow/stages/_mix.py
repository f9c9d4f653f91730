from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from math import gcd, lcm
from typing import Any, Literal, NamedTuple, cast, get_args

import numpy as np

from towerpack._core.errors import ConfigError, DataFlowError
from towerpack._core.logs import get_logger
from towerpack._core.randomness import derive_seed
from towerpack.dataflow._flow import DataFlow, length_of, require_flows
from towerpack.dataflow._iteration_state import State, Stream, check_count, inner_state
from towerpack.dataflow._permutation import permute
from towerpack.dataflow._plan import Node
from towerpack.dataflow.arguments import check_choice, repr_of
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
    """Return the smallest integers in the same proportions as decimal weights."""
    try:
        shares = [Fraction(str(weight)) for weight in weights]
    except (TypeError, ValueError):
        shares = [Fraction(0)]
    if any(share <= 0 for share in shares):
        raise ConfigError(f"weights must be finite numbers above 0, got {repr_of(weights)}.")
    scale = lcm(*(share.denominator for share in shares))
    whole = [int(share * scale) for share in shares]
    total = sum(whole)
    if total > _FINEST * gcd(*whole):
        whole = [max(1, round(Fraction(weight * _FINEST, total))) for weight in whole]
        log.warning("The weights of a mix, %r, are rounded to %s", weights, whole)
    return tuple(weight // gcd(*whole) for weight in whole)


class Turns(NamedTuple):
    whose: Array  # flow of each turn in a period
    nth: Array  # number of earlier turns of that flow in the period, for each turn
    weights: Array  # number of turns in a period, for each flow


@lru_cache(maxsize=64)
def even_turns(weights: tuple[int, ...]) -> Turns:
    """Return the even schedule in which flow i has `weights[i]` of every `sum(weights)` turns.

    Turn n of a flow with weight w of W has the time window `n * W / w` to `(n + 1) * W / w`. The
    earliest deadline goes first (Baruah et al. 1996, proportionate progress).
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
    def __init__(
        self, sizes: Sequence[int | None], weights: Sequence[int], *, stop_first: bool
    ) -> None:
        left = list(weights)  # 0 for flows that have ended
        consumed = np.zeros(len(sizes), np.int64)
        # Phases with the same flows: start, datapoints consumed before of each flow, schedule.
        self._phases: list[tuple[int, Array, Turns]] = []
        self.size: int | None = 0
        while any(left):
            turns = even_turns(tuple(left))
            period = len(turns.whose)
            self._phases.append((self.size, consumed.copy(), turns))
            ends: dict[int, int] = {}  # from the first turn at which a flow is empty to the flow
            for flow, size in enumerate(sizes):
                if size is not None and left[flow]:
                    periods, rest = divmod(size - int(consumed[flow]), int(turns.weights[flow]))
                    in_period = np.flatnonzero(turns.whose == flow)
                    ends[periods * period + int(in_period[rest])] = flow
            if not ends:
                self.size = None
                break
            end = min(ends)
            self.size += end
            periods, rest = divmod(end, period)
            consumed += periods * turns.weights
            consumed += np.bincount(turns.whose[:rest], minlength=len(sizes))
            left[ends[end]] = 0
            if stop_first:
                break
        self._starts = [start for start, _, _ in self._phases]

    def locate(self, epoch: int, positions: Array) -> tuple[Array, Array]:
        flows, local = np.empty_like(positions), np.empty_like(positions)
        which = np.searchsorted(self._starts, positions, side="right") - 1
        for index in cast("list[int]", np.unique(which).tolist()):
            start, before, turns = self._phases[index]
            inside = which == index
            periods, rest = np.divmod(positions[inside] - start, len(turns.whose))
            flows[inside] = whose = turns.whose[rest]
            local[inside] = before[whose] + periods * turns.weights[whose] + turns.nth[rest]
        return flows, local


class MixData(Combination):
    """Mix flows in fixed proportions.

    The order of turns is fixed and even: of the first n datapoints, a flow with share w yields
    w * n, to within one. Each flow keeps its own order. Shuffle the flows, not the mixture. Weights
    become the smallest integers in the same ratios. If these add up to more than 65,536, they are
    rounded with a warning.

    Args:
        flows: One or more flows.
        weights: Relative shares of the flows; equal by default.
        stop: End of a pass: "first" ends when a flow is empty at its turn, "all" when all flows
            have been read once, and "repeat" never, since each flow is repeated.

    Raises:
        ConfigError: An argument is invalid, or the number of weights differs from that of flows.
    """

    def __init__(
        self,
        flows: Sequence[DataFlow],
        weights: Sequence[float] | None = None,
        *,
        stop: Stop = "first",
    ) -> None:
        super().__init__(flows)
        check_choice(stop, "stop", get_args(Stop))
        self.weights = whole_weights([1] * len(self.flows) if weights is None else weights)
        if len(self.weights) != len(self.flows):
            counts = f"{len(self.weights)} weights for {len(self.flows)} flows"
            raise ConfigError(f"weights must have one number for each flow, got {counts}.")
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
    """Variant of `MixData` with the arguments of Tensorpack. The turns are even, not random.

    A pass ends when a flow is empty at its turn.

    Args:
        df_lists: Flows, or pairs of a flow and its weight.
    """

    def __init__(self, df_lists: Sequence[DataFlow] | Sequence[tuple[DataFlow, float]]) -> None:
        if isinstance(df_lists, DataFlow):
            require_flows(df_lists, self)
        pairs: list[Any] = [df if isinstance(df, (tuple, list)) else (df, 1) for df in df_lists]
        super().__init__([flow for flow, _ in pairs], [weight for _, weight in pairs])


class MixStream(CombinedStream):
    def __init__(self, flow: MixData, context: StageContext, epoch: int, state: State) -> None:
        super().__init__(flow.open_inputs(context, epoch, inner_state(state)))
        self._stop_first = flow.stop != "all"
        self._weights = list(flow.weights)  # 0 for flows that have ended
        self._ended: list[int] = [] if state is None else list(state["gone"])
        self._turn: int = 0 if state is None else state["turn"]
        for ended in self._ended:
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
                self._ended = [*self._ended, flow]
                self._weights[flow] = self._turn = 0
                self._whose = self._turns()
            else:
                self._turn += 1
                return datapoint
        raise StopIteration

    def state(self) -> State:
        return {"gone": self._ended, "turn": self._turn, "inner": self.inner_states()}

    def _turns(self) -> list[int]:
        left = any(self._weights)
        return even_turns(tuple(self._weights)).whose.tolist() if left else []


class RandomMixData(Combination):
    """Mix all datapoints of several flows in a random order, which is new in each pass.

    Every interleaving is equally likely, and each flow keeps its own order. The length is the sum
    of the lengths. The order of a pass takes 16 bytes of memory per datapoint.

    Args:
        df_lists: One or more flows of known length.

    Raises:
        ConfigError: The length of a flow is unknown or infinite.
        DataFlowError: A flow is shorter than its `len()`; raised while iterating.
    """

    random = True

    def __init__(self, df_lists: Sequence[DataFlow]) -> None:
        super().__init__(df_lists)
        for flow in self.flows:
            if not isinstance(length_of(flow), int):
                raise ConfigError(
                    f"RandomMixData needs finite flows of known length, got {flow}.",
                    fix="use MixData, which accepts infinite flows and flows of unknown length",
                )

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
    def __init__(self, sizes: Sequence[int], key: int) -> None:
        self.size = sum(sizes)
        self._ends = np.cumsum(sizes)
        self._key = key
        self._last: tuple[int, Array, Array] | None = None

    def order(self, epoch: int) -> tuple[Array, Array]:
        last = self._last
        if last is None or last[0] != epoch:
            order = np.arange(self.size, dtype=np.int64)
            drawn = permute(order, self.size, derive_seed(self._key, epoch))
            flows = np.searchsorted(self._ends, drawn, side="right")
            local = np.empty_like(order)
            local[np.argsort(flows, kind="stable")] = order
            starts = np.concatenate(([0], self._ends[:-1]))
            # One assignment, so this is thread-safe.
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
            flow = self._flows[index]
            what = f"{pipeline_of(flow)} yielded fewer datapoints than its length, {len(flow)}."
            raise DataFlowError(what) from None
        self._position += 1
        return datapoint

    def state(self) -> State:
        return {"position": self._position, "inner": self.inner_states()}
