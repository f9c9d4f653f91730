"""Several flows side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from towerpack._core.errors import ConfigError, DataFlowError
from towerpack._core.logs import get_logger
from towerpack.dataflow._blocks import Block, Columns, Positions, to_rows
from towerpack.dataflow._datapoints import Datapoint, describe_datapoint
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

log = get_logger(__name__)


class JoinData(Stage):
    """Joins the i-th datapoints of all flows into one.

    Tuples and lists are concatenated (a list if any is a list), dicts are merged, the later
    winning. It ends with the shortest flow. A flow may occur twice, but then its two places have
    two streams of randomness: give its shuffle a `seed=` of its own to keep both alike.

    Contract: in order; the shortest length; not random; thread- and fork-safe as the flows are;
    resumable as they are.

    Args:
        flows: One or more.
        strict: Lengths that differ are an error rather than a warning.

    Raises:
        ConfigError: `strict`, and known lengths differ.
        DataFlowError: `strict`, and a flow ends before another; raised while iterating.
    """

    def __init__(self, flows: Sequence[DataFlow], *, strict: bool = False) -> None:
        self.flows = require_flows(flows, self)
        self.strict = strict
        if not self.flows:
            raise ConfigError("JoinData was given no flow.", expected="one or more")
        self._check_lengths()

    @property
    def inputs(self) -> tuple[DataFlow, ...]:
        return tuple(self.flows)

    def length(self) -> Length:
        shortest: Length = length_of(self.flows[0])
        for length in map(length_of, self.flows):
            if length is None or shortest is None:
                return None
            shortest = min(length, shortest)
        return shortest

    def compile(self, place: Place) -> Node | None:
        nodes: list[Node] = []
        for flow, where in zip(self.flows, self.places(place), strict=True):
            node = compile_flow(flow, where)
            if node is None:
                return None
            nodes.append(node)
        return JoinNode(nodes)

    def open(self, place: Place, epoch: int, state: State) -> Stream:
        return JoinStream(self, place, epoch, state)

    def places(self, place: Place) -> list[Place]:
        """Where the flows stand."""
        if len(self.flows) == 1:
            return [place]
        return [place.child(index) for index in range(len(self.flows))]

    def _check_lengths(self) -> None:
        lengths = [length_of(flow) for flow in self.flows]
        finite = {length for length in lengths if length is not None and not infinite(length)}
        if len(finite) < 2 and not (self.strict and finite and any(map(infinite, lengths))):
            return
        shown = ", ".join("unknown" if length is None else str(length) for length in lengths)
        if self.strict:
            raise ConfigError(
                "The flows to join differ in length.",
                got=shown,
                fix="leave out strict=True to stop with the shortest",
            )
        log.warning("JoinData stops with the shortest of flows of lengths %s", shown)


def join(parts: Sequence[Datapoint]) -> Datapoint:
    """Put datapoints together into one.

    Raises:
        DataFlowError: Some are dicts and some are not, or have no components.
    """
    if all(isinstance(part, dict) for part in parts):
        merged: dict[Any, Any] = {}
        for part in parts:
            merged.update(part)
        return merged
    if not all(isinstance(part, (tuple, list)) for part in parts):
        raise DataFlowError(
            "These datapoints cannot be joined.",
            got=" and ".join(map(describe_datapoint, parts)),
            expected="tuples and lists, or dicts",
        )
    values = [value for part in parts for value in cast("Sequence[Any]", part)]
    return values if any(isinstance(part, list) for part in parts) else tuple(values)


class JoinNode(Node):
    """Reads the same positions of several plans."""

    def __init__(self, nodes: list[Node]) -> None:
        self.inputs = nodes
        self.size = min((node.size for node in nodes if node.size is not None), default=None)
        self.chunk = min(node.chunk for node in nodes)

    def read(self, epoch: int, positions: Positions) -> Block:
        blocks = [node.read(epoch, positions) for node in self.inputs]
        columns = [block for block in blocks if isinstance(block, Columns)]
        if len(columns) == len(blocks):
            return Columns(join([block.data for block in columns]), len(positions))
        return [join(parts) for parts in zip(*map(to_rows, blocks), strict=True)]

    def get(self, epoch: int, position: int) -> Datapoint:
        return join([node.get(epoch, position) for node in self.inputs])


class JoinStream(Stream):
    """Takes one datapoint from each stream. Its state is theirs, before the first was asked."""

    def __init__(self, flow: JoinData, place: Place, epoch: int, state: State) -> None:
        places = flow.places(place)
        states: list[State] = [None] * len(places) if state is None else list(state)
        self._strict = flow.strict
        self._streams = [
            open_flow(inner, where, epoch, saved)
            for inner, where, saved in zip(flow.flows, places, states, strict=True)
        ]
        self._before: list[State] | None = None
        self._parts: list[Datapoint] = []  # kept if a later stream raises
        self._ended = False
        self._unequal = False

    def __next__(self) -> Datapoint:
        if self._ended:
            raise StopIteration
        if self._before is None:
            self._before = [stream.state() for stream in self._streams]
        for stream in self._streams[len(self._parts) :]:
            try:
                self._parts.append(next(stream))
            except StopIteration:
                self._end()
                raise
        datapoint = join(self._parts)
        self._parts, self._before = [], None
        return datapoint

    def state(self) -> State:
        if self._before is not None:
            return list(self._before)
        return [stream.state() for stream in self._streams]

    def close(self) -> None:
        for stream in self._streams:
            stream.close()

    def _end(self) -> None:
        self._unequal = self._unequal or bool(self._parts) or self._later_has_more()
        if self._strict and self._unequal:
            raise DataFlowError(
                "A joined flow ended before another.",
                fix="leave out strict=True to stop with the shortest",
            ) from None
        self._ended = True

    def _later_has_more(self) -> bool:
        if not self._strict:
            return False
        for stream in self._streams[1:]:
            try:
                next(stream)
            except StopIteration:
                continue
            return True
        return False
