"""Several flows side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from towerpack._core.errors import ConfigError, DataFlowError
from towerpack._core.logs import get_logger
from towerpack.dataflow._blocks import Block, Columns, Positions, to_rows
from towerpack.dataflow._datapoints import Datapoint, describe_datapoint
from towerpack.dataflow._flow import DataFlow, Length, Place, infinite, length_of
from towerpack.dataflow._plan import Node
from towerpack.dataflow._stream import State, Stream
from towerpack.dataflow.stages._combination import Combination, CombinedStream

log = get_logger(__name__)


class JoinData(Combination):
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
        super().__init__(flows)
        self.strict = strict
        self._check_lengths()

    def length(self) -> Length:
        lengths: list[Any] = [length_of(flow) for flow in self.flows]
        return None if None in lengths else min(lengths)

    def combine(self, nodes: list[Node], place: Place) -> Node:
        return JoinNode(nodes)

    def open(self, place: Place, epoch: int, state: State) -> Stream:
        return JoinStream(self.open_inputs(place, epoch, state), strict=self.strict)

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


class JoinStream(CombinedStream):
    """Takes one datapoint from each stream. Its state is theirs, before the first was asked."""

    def __init__(self, streams: list[Stream], *, strict: bool) -> None:
        super().__init__(streams)
        self._strict = strict
        self._before: list[State] | None = None
        self._parts: list[Datapoint] = []  # kept if a later stream raises
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
        datapoint = join(self._parts)
        self._parts, self._before = [], None
        return datapoint

    def state(self) -> State:
        return self.inner_states() if self._before is None else list(self._before)

    def _check_ends(self) -> None:
        """Refuse an end at which another stream has a datapoint."""
        end = object()
        others = self.streams[1:]
        if not (self._unequal or self._parts or any(next(one, end) is not end for one in others)):
            return
        self._unequal = True
        raise DataFlowError(
            "A joined flow ended before another.",
            fix="leave out strict=True to stop with the shortest",
        ) from None
