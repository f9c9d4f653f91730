"""Several flows in turns, in chosen shares."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError
from towerpack.dataflow._arguments import given
from towerpack.dataflow._blocks import Block, Positions, as_array, read_groups
from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow._flow import (
    DataFlow,
    Length,
    Place,
    Stage,
    compile_flow,
    infinite,
    length_of,
    open_flow,
    require_flows,
)
from towerpack.dataflow._plan import Node
from towerpack.dataflow._stream import State, Stream
from towerpack.dataflow.stages._concat import place_of
from towerpack.dataflow.stages._repeat import RepeatedData
from towerpack.dataflow.stages._turns import Turns, even_turns, whole_weights

Stop = Literal["first", "all", "repeat"]
Array = NDArray[np.int64]


class MixData(Stage):
    """Takes turns between flows, so that each has its share of every stretch of the mix.

    The order of turns is fixed, and as even as can be: of the first n datapoints, for any n, a flow
    with share w has given w * n, to within one. Shuffle the flows, not the mix. Shares are exact
    where the smallest integers in their proportion sum up to no more than 65,536; others are
    rounded to that, which a warning tells.

    Contract: each flow in its own order; length by `stop`; not random; thread- and fork-safe as the
    flows are; resumable as they are, at once if all are indexable.

    Args:
        flows: One or more.
        weights: The shares, in any unit; equal ones by default.
        stop: When a pass ends: when the "first" flow has nothing left for its turn; when "all" have
            been read once, those that remain keeping the proportion of their weights; or never,
            where "repeat" has each flow repeated for ever.

    Raises:
        ConfigError: No flows, or weights that do not fit them.
    """

    def __init__(
        self,
        flows: Sequence[DataFlow],
        weights: Sequence[float] | None = None,
        *,
        stop: Stop = "first",
    ) -> None:
        self.flows = require_flows(flows, self)
        if stop not in ("first", "all", "repeat"):
            raise ConfigError(f"There is no stop={stop!r}.", expected='"first", "all" or "repeat"')
        if weights is None:
            weights = [1] * len(self.flows)
        elif not isinstance(cast("object", weights), Iterable):
            raise ConfigError("weights must be a list.", got=given(weights), expected="[0.7, 0.3]")
        shares = list(weights)
        if not self.flows or len(shares) != len(self.flows):
            raise ConfigError(
                f"{type(self).__name__} was given {len(self.flows)} flows and "
                f"{len(shares)} weights.",
                expected="one or more flows, and a weight for each",
            )
        if stop == "repeat":
            self.flows = [RepeatedData(flow) for flow in self.flows]
        self.weights = whole_weights(shares)
        self.stop: Stop = stop

    @property
    def inputs(self) -> tuple[DataFlow, ...]:
        return tuple(self.flows)

    def length(self) -> Length:
        sizes: list[int | None] = []
        for length in map(length_of, self.flows):
            if length is None:
                return None
            sizes.append(None if infinite(length) else int(length))
        size = EvenMix(sizes, self.weights, stop_first=self.stop != "all").size
        return float("inf") if size is None else size

    def identity(self) -> str:
        return f"{':'.join(map(str, self.weights))}, {self.stop}"

    def compile(self, place: Place) -> Node | None:
        nodes = compile_inputs(self.flows, place)
        if nodes is None:
            return None
        sizes = [node.size for node in nodes]
        return MixNode(nodes, EvenMix(sizes, self.weights, stop_first=self.stop != "all"))

    def open(self, place: Place, epoch: int, state: State) -> Stream:
        return MixStream(self, place, epoch, state)


class RandomChooseData(MixData):
    """`MixData` with the arguments of Tensorpack; turns are even rather than drawn at random.

    Contract: as `MixData`; ends when a flow has nothing left for its turn.

    Args:
        df_lists: Flows, or pairs of a flow and its probability. These need not sum to one.
    """

    def __init__(self, df_lists: Sequence[DataFlow] | Sequence[tuple[DataFlow, float]]) -> None:
        if isinstance(df_lists, DataFlow) or not isinstance(cast("object", df_lists), Iterable):
            require_flows(df_lists, self)
        pairs = [self._pair(entry) for entry in df_lists]
        super().__init__([flow for flow, _ in pairs], [weight for _, weight in pairs])

    @staticmethod
    def _pair(entry: Any) -> tuple[Any, Any]:
        if not isinstance(entry, (tuple, list)):
            return entry, 1
        pair = cast("Sequence[Any]", entry)
        if len(pair) != 2:
            raise ConfigError(
                "RandomChooseData takes flows, or pairs of a flow and its probability.",
                got=f"{len(pair)} values together",
                fix="[(ds1, 0.7), (ds2, 0.3)]",
            )
        return pair[0], pair[1]


@dataclass(frozen=True)
class Phase:
    """A stretch of a mix in which the same flows take turns.

    Attributes:
        start: Where it begins in the mix.
        flows: Which flows.
        before: How much each of them gave before.
        turns: Whose turn it is among them.
    """

    start: int
    flows: Array
    before: Array
    turns: Turns


class Mix(Protocol):
    """Which position of which flow each position of a mix is."""

    @property
    def size(self) -> int | None:
        """Datapoints in the mix; `None` is infinite."""
        ...

    def locate(self, epoch: int, positions: Array) -> tuple[Array, Array]:
        """For each position the flow, and the position in it."""
        ...

    def locate_one(self, epoch: int, position: int) -> tuple[int, int]:
        """`locate` for a single position."""
        ...


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
        left = list(range(len(sizes)))
        given = np.zeros(len(sizes), np.int64)
        self._phases: list[Phase] = []
        self.size: int | None = 0
        while left:
            turns = even_turns(tuple(weights[flow] for flow in left))
            self._phases.append(Phase(self.size, np.array(left), given[left], turns))
            # For each flow the first turn at which it has nothing left.
            ends = {
                turns.turn_of(index, size - int(given[flow])): flow
                for index, flow in enumerate(left)
                if (size := sizes[flow]) is not None
            }
            if not ends:
                self.size = None
                break
            end = min(ends)
            given[left] += turns.taken(end)
            self.size += end
            left.remove(ends[end])
            if stop_first:
                break
        self._starts = [phase.start for phase in self._phases]

    def locate(self, epoch: int, positions: Array) -> tuple[Array, Array]:
        """For each position the flow, and the position in it."""
        flows, local = np.empty_like(positions), np.empty_like(positions)
        which = np.searchsorted(self._starts, positions, side="right") - 1
        for index in cast("list[int]", np.unique(which).tolist()):
            phase: Phase = self._phases[index]
            here = which == index
            whose, nth = phase.turns.locate(positions[here] - phase.start)
            flows[here] = phase.flows[whose]
            local[here] = phase.before[whose] + nth
        return flows, local

    def locate_one(self, epoch: int, position: int) -> tuple[int, int]:
        """`locate` for a single position."""
        phase = self._phases[bisect_right(self._starts, position) - 1]
        whose, nth = phase.turns.locate_one(position - phase.start)
        return int(phase.flows[whose]), int(phase.before[whose]) + nth


class MixNode(Node):
    """Reads several plans in turns.

    Args:
        nodes: The plans.
        mix: Whose turn it is.
    """

    def __init__(self, nodes: list[Node], mix: Mix) -> None:
        self.inputs = nodes
        self.size = mix.size
        self.chunk = min(node.chunk for node in nodes)
        self._mix = mix

    def read(self, epoch: int, positions: Positions) -> Block:
        flows, local = self._mix.locate(epoch, as_array(positions))
        return read_groups(flows, local, lambda flow, at: self.inputs[flow].read(epoch, at))

    def get(self, epoch: int, position: int) -> Datapoint:
        flow, local = self._mix.locate_one(epoch, position)
        return self.inputs[flow].get(epoch, local)


class MixStream(Stream):
    """Takes turns between streams."""

    def __init__(self, flow: MixData, place: Place, epoch: int, state: State) -> None:
        self._weights = flow.weights
        self._stop_first = flow.stop != "all"
        self._gone: list[int] = [] if state is None else list(state["gone"])
        self._turn: int = 0 if state is None else state["turn"]
        states = None if state is None else state["inner"]
        self._streams = open_inputs(flow.flows, place, epoch, states)
        self._begin_phase()

    def __next__(self) -> Datapoint:
        while self._left:
            flow = self._left[int(self._turns.whose[self._turn % self._turns.period])]
            try:
                datapoint = next(self._streams[flow])
            except StopIteration:
                if self._stop_first:
                    raise
                self._gone = [*self._gone, flow]
                self._turn = 0
                self._begin_phase()
            else:
                self._turn += 1
                return datapoint
        raise StopIteration

    def state(self) -> State:
        inner = [stream.state() for stream in self._streams]
        return {"gone": self._gone, "turn": self._turn, "inner": inner}

    def close(self) -> None:
        for stream in self._streams:
            stream.close()

    def _begin_phase(self) -> None:
        self._left = [flow for flow in range(len(self._weights)) if flow not in self._gone]
        if self._left:
            self._turns = even_turns(tuple(self._weights[flow] for flow in self._left))


def compile_inputs(flows: Sequence[DataFlow], place: Place) -> list[Node] | None:
    """The plans of several inputs of a stage, if all have one."""
    nodes: list[Node] = []
    for index, flow in enumerate(flows):
        node = compile_flow(flow, place_of(place, index, len(flows)))
        if node is None:
            return None
        nodes.append(node)
    return nodes


def open_inputs(
    flows: Sequence[DataFlow], place: Place, epoch: int, states: Sequence[State] | None
) -> list[Stream]:
    """Streams of all inputs of a stage, from their beginnings or from states."""
    states = [None] * len(flows) if states is None else states
    return [
        open_flow(flow, place_of(place, index, len(flows)), epoch, state)
        for index, (flow, state) in enumerate(zip(flows, states, strict=True))
    ]
