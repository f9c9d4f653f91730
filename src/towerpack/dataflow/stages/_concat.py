"""One flow after another."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from towerpack._core.errors import ConfigError
from towerpack.dataflow._blocks import Block, Positions, as_array, read_groups
from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow._flow import (
    DataFlow,
    Length,
    Place,
    Stage,
    compile_flow,
    length_of,
    open_flow,
    require_flows,
)
from towerpack.dataflow._plan import Node
from towerpack.dataflow._stream import State, Stream


class ConcatData(Stage):
    """All datapoints of the first flow, then all of the second, and so on.

    Contract: in order; sum of the lengths; not random; thread- and fork-safe as the flows are;
    resumable as they are.

    Args:
        flows: One or more.
    """

    def __init__(self, flows: Sequence[DataFlow]) -> None:
        self.flows = require_flows(flows, self)
        if not self.flows:
            raise ConfigError("ConcatData was given no flow.", expected="one or more")

    @property
    def inputs(self) -> tuple[DataFlow, ...]:
        return tuple(self.flows)

    def length(self) -> Length:
        total: int | float = 0
        for length in map(length_of, self.flows):
            if length is None:
                return None
            total += length
        return total

    def compile(self, place: Place) -> Node | None:
        nodes: list[Node] = []
        for index, flow in enumerate(self.flows):
            node = compile_flow(flow, place_of(place, index, len(self.flows)))
            if node is None:
                return None
            nodes.append(node)
        return ConcatNode(nodes)

    def open(self, place: Place, epoch: int, state: State) -> Stream:
        return ConcatStream(self.flows, place, epoch, state)


def place_of(place: Place, index: int, count: int) -> Place:
    """Where input `index` of `count` stands; a single one stands where its stage does."""
    return place if count == 1 else place.child(index)


class ConcatNode(Node):
    """Reads several plans one after another; what follows an infinite one is never reached."""

    def __init__(self, nodes: list[Node]) -> None:
        sizes = [math.inf if node.size is None else node.size for node in nodes]
        if math.inf in sizes:
            nodes = nodes[: sizes.index(math.inf) + 1]
        self.inputs = self.passes_on = nodes
        finite = [node.size for node in nodes if node.size is not None]
        self.size = sum(finite) if len(finite) == len(nodes) else None
        self.chunk = min(node.chunk for node in nodes)
        self._starts = np.concatenate(([0], np.cumsum(finite))).astype(np.int64)[: len(nodes)]

    def read(self, epoch: int, positions: Positions) -> Block:
        if isinstance(positions, range):
            index = self._index(positions.start)
            if index == self._index(positions.stop - 1):
                start = int(self._starts[index])
                local = range(positions.start - start, positions.stop - start)
                return self.inputs[index].read(epoch, local)
        where = as_array(positions)
        groups = np.searchsorted(self._starts, where, side="right") - 1
        return read_groups(
            groups, where - self._starts[groups], lambda i, local: self.inputs[i].read(epoch, local)
        )

    def get(self, epoch: int, position: int) -> Datapoint:
        index = self._index(position)
        return self.inputs[index].get(epoch, position - int(self._starts[index]))

    def _index(self, position: int) -> int:
        return int(np.searchsorted(self._starts, position, side="right")) - 1


class ConcatStream(Stream):
    """Opens one flow after another; stays at the end of one until asked for more."""

    def __init__(self, flows: list[DataFlow], place: Place, epoch: int, state: State) -> None:
        self._flows = flows
        self._place = place
        self._epoch = epoch
        self._index = 0 if state is None else state["index"]
        self._inner = self._open(None if state is None else state["inner"])

    def __next__(self) -> Datapoint:
        while True:
            try:
                return next(self._inner)
            except StopIteration:
                if self._index + 1 == len(self._flows):
                    raise
                self._index += 1
                self._inner = self._open(None)

    def state(self) -> State:
        return {"index": self._index, "inner": self._inner.state()}

    def close(self) -> None:
        self._inner.close()

    def _open(self, state: State) -> Stream:
        place = place_of(self._place, self._index, len(self._flows))
        return open_flow(self._flows[self._index], place, self._epoch, state)
