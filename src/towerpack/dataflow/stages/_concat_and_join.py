from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from towerpack._core.arguments import KeepsArguments
from towerpack._core.errors import ConfigError, DataFlowError
from towerpack._core.logs import get_logger
from towerpack.dataflow._compile import Stage
from towerpack.dataflow._flow import DataFlow, length_of, require_flows
from towerpack.dataflow._iteration_state import InnerStream, State, Stream, inner_state
from towerpack.dataflow._plan import Node, gather
from towerpack.dataflow.datapoints import (
    Block,
    Columns,
    Datapoint,
    Positions,
    as_array,
    describe_datapoint,
    read_groups,
    to_rows,
)
from towerpack.dataflow.pipeline_names import Length
from towerpack.dataflow.stage_context import StageContext

log = get_logger(__name__)
Array = NDArray[np.int64]
Locate = Callable[[int, Array], tuple[Array, Array]]
"""Function from an epoch and positions to the inputs and the positions in the inputs."""

_BLOCK = 256  # number of positions that are located at once


class Combination(KeepsArguments, Stage):
    def __init__(self, flows: Sequence[DataFlow]) -> None:
        self.flows = require_flows(flows, self)
        args, kwargs = self.__dict__["_arguments"]
        # Replace a generator, which cannot be pickled.
        args = tuple(self.flows if value is flows else value for value in args)
        kwargs = {name: self.flows if v is flows else v for name, v in kwargs.items()}
        self.__dict__["_arguments"] = args, kwargs
        if not self.flows:
            raise ConfigError(f"{type(self).__name__} needs at least one flow.")

    @property
    def inputs(self) -> tuple[DataFlow, ...]:
        return tuple(self.flows)

    @abstractmethod
    def combine(self, nodes: list[Node], context: StageContext) -> Node: ...

    def compile(self, context: StageContext) -> Node | None:
        inputs = enumerate(self.flows)
        nodes = [flow.compile_in(self._context_of(index, context)) for index, flow in inputs]
        planned = [node for node in nodes if node is not None]
        return self.combine(planned, context) if len(planned) == len(nodes) else None

    def open_input(self, index: int, context: StageContext, epoch: int, state: State) -> Stream:
        return self.flows[index].open_in(self._context_of(index, context), epoch, state)

    def open_inputs(self, context: StageContext, epoch: int, states: Any) -> list[Stream]:
        inputs = enumerate(states or [None] * len(self.flows))
        return [self.open_input(index, context, epoch, state) for index, state in inputs]

    def _context_of(self, index: int, context: StageContext) -> StageContext:
        return context if len(self.flows) == 1 else context.child(index)


class CombinedStream(Stream):
    def __init__(self, streams: list[Stream]) -> None:
        self.streams = streams

    def inner_states(self) -> list[State]:
        return [stream.state() for stream in self.streams]

    def close(self) -> None:
        for stream in self.streams:
            stream.close()


class LocatedNode(Node):
    def __init__(self, nodes: list[Node], size: int | None, locate: Locate) -> None:
        self.inputs = nodes
        self.size = size
        self.chunk = min(node.chunk for node in nodes)
        self._locate = locate

    def read(self, epoch: int, positions: Positions) -> Block:
        inputs, local = self._locate(epoch, as_array(positions))
        if isinstance(positions, range) and (inputs == inputs[0]).all():
            start = int(local[0])
            return self.inputs[int(inputs[0])].read(epoch, range(start, start + len(local)))
        return read_groups(inputs, local, lambda index, part: self.inputs[index].read(epoch, part))

    def get(self, epoch: int, position: int) -> Datapoint:
        block, offset = divmod(position, _BLOCK)
        last: tuple[int, int, list[int], list[int]] | None = self._last
        if last is None or last[:2] != (epoch, block):
            stop = (block + 1) * _BLOCK
            stop = stop if self.size is None else min(stop, self.size)
            inputs, local = self._locate(epoch, np.arange(block * _BLOCK, stop, dtype=np.int64))
            self._last = last = epoch, block, inputs.tolist(), local.tolist()
        return self.inputs[last[2][offset]].get(epoch, last[3][offset])


class ConcatData(Combination):
    """Concatenation of flows: all datapoints of the first flow, then of the second, and so on.

    Args:
        flows: One or more flows.

    Raises:
        ConfigError: There are no flows.
    """

    def length(self) -> Length:
        lengths: list[Any] = [length_of(flow) for flow in self.flows]
        return None if None in lengths else sum(lengths)

    def combine(self, nodes: list[Node], context: StageContext) -> Node:
        sizes = [math.inf if node.size is None else node.size for node in nodes]
        if math.inf in sizes:  # flows after an infinite one are never reached
            nodes = nodes[: sizes.index(math.inf) + 1]
        finite = [node.size for node in nodes if node.size is not None]
        starts = np.cumsum([0, *finite])[: len(nodes)]

        def locate(epoch: int, positions: Array) -> tuple[Array, Array]:
            inputs = np.searchsorted(starts, positions, side="right") - 1
            return inputs, positions - starts[inputs]

        node = LocatedNode(nodes, sum(finite) if len(finite) == len(nodes) else None, locate)
        node.forwarded = nodes
        return node

    def open(self, context: StageContext, epoch: int, state: State) -> Stream:
        return ConcatStream(self, context, epoch, state)


class ConcatStream(InnerStream):
    def __init__(self, flow: ConcatData, context: StageContext, epoch: int, state: State) -> None:
        self._flow = flow
        self._pass = context, epoch
        self._index: int = 0 if state is None else state["index"]
        self._inner = flow.open_input(self._index, *self._pass, inner_state(state))

    def __next__(self) -> Datapoint:
        while True:
            try:
                return next(self._inner)
            except StopIteration:
                if self._index + 1 == len(self._flow.flows):
                    raise
                self._index += 1
                self._inner = self._flow.open_input(self._index, *self._pass, None)

    def state(self) -> State:
        return {"index": self._index, "inner": self._inner.state()}


class JoinData(Combination):
    """Join datapoint i of all flows into one datapoint.

    Tuples and lists are concatenated, to a list if any of them is a list. Dicts are merged, and
    later flows win. The length is that of the shortest flow. If a flow occurs twice, its random
    stages differ. Pass `seed=` to a shuffle to make them equal.

    Args:
        flows: One or more flows.
        strict: Whether flows of different lengths are an error. By default they are a warning.

    Raises:
        ConfigError: Known lengths differ, with `strict`.
        DataFlowError: A flow ends before another, with `strict`; raised while iterating.
    """

    def __init__(self, flows: Sequence[DataFlow], *, strict: bool = False) -> None:
        super().__init__(flows)
        self.strict = strict
        lengths = [length_of(flow) for flow in self.flows]
        known = {length for length in lengths if length is not None}
        shown = ", ".join("unknown" if length is None else str(length) for length in lengths)
        if strict and len(known) > 1:
            raise ConfigError(f"With strict=True, joined flows must be equally long, got {shown}.")
        if len(known - {math.inf}) > 1:
            log.warning("JoinData ends with the shortest of its flows, whose lengths are %s", shown)

    def length(self) -> Length:
        lengths: list[Any] = [length_of(flow) for flow in self.flows]
        return None if None in lengths else min(lengths)

    def combine(self, nodes: list[Node], context: StageContext) -> Node:
        return JoinNode(nodes)

    def open(self, context: StageContext, epoch: int, state: State) -> Stream:
        inputs = self.open_inputs(replace(context, retained=True), epoch, state)
        return JoinStream(inputs, strict=self.strict)


def join(parts: Sequence[Datapoint]) -> Datapoint:
    if all(isinstance(part, dict) for part in parts):
        return {key: value for part in parts for key, value in part.items()}
    if not all(isinstance(part, (tuple, list)) for part in parts):
        raise DataFlowError(
            "Datapoints to join must all be tuples or lists, or all be dicts.",
            got=" and ".join(map(describe_datapoint, parts)),
        )
    values = [value for part in parts for value in cast("Sequence[Any]", part)]
    return values if any(isinstance(part, list) for part in parts) else tuple(values)


class JoinNode(Node):
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


class JoinStream(CombinedStream):
    """Stream that joins one datapoint from each input stream."""

    def __init__(self, streams: list[Stream], *, strict: bool) -> None:
        super().__init__(streams)
        self._strict = strict
        self._before: list[State] | None = None
        self._parts: list[Datapoint] = []  # retained if a later stream raises
        self._unequal = False

    def __next__(self) -> Datapoint:
        if self._before is None:
            self._before = self.inner_states()
        for stream in self.streams[len(self._parts) :]:
            try:
                self._parts.append(next(stream))
            except StopIteration:
                if self._strict:
                    self._check_ends()
                raise
        datapoint = gather(join, self._parts)
        self._parts, self._before = [], None
        return datapoint

    def state(self) -> State:
        return self.inner_states() if self._before is None else list(self._before)

    def _check_ends(self) -> None:
        end, others = object(), self.streams[1:]
        self._unequal |= bool(self._parts) or any(next(other, end) is not end for other in others)
        if self._unequal:
            what = "With strict=True, joined flows must be equally long, but one ended earlier."
            raise DataFlowError(what) from None
