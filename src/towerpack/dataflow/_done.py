"""Passes over a plan that did not go in order: which positions are done, and the rest of them."""

from __future__ import annotations

import bisect
import sys
from typing import Any, cast

from towerpack._core.errors import StateError
from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow._plan import Node
from towerpack.dataflow._stream import State, Stream, check_count


class Done:
    """Which positions of a pass were handed on: all before one, and some ranges after it.

    Args:
        state: As `state()` gave it, or a position: all before it.
        size: Of the pass.
    """

    def __init__(self, state: State, size: int) -> None:
        self._ranges: list[list[int]] = [[0, 0]]
        if isinstance(state, dict):
            fields = cast("dict[str, Any]", state)
            self._ranges = [[0, fields["from"]], *(list(one) for one in fields["ahead"])]
        elif state is not None:
            self._ranges = [[0, check_count(state, size)]]
        edges = [edge for one in self._ranges for edge in one]
        pairs = all(len(one) == 2 for one in self._ranges)
        if not pairs or edges != sorted(edges) or edges[-1] > size:
            raise StateError(
                "The ranges of a state are not within a pass, one after another.",
                got=f"{self._ranges!r:.200}",
                expected=f"positions in 0..{size}",
                fix="the state is damaged, or was taken from other data",
            )

    def add(self, position: int) -> None:
        """One more position."""
        ranges = self._ranges
        index = bisect.bisect_right(ranges, [position, sys.maxsize]) - 1
        if index >= 0 and ranges[index][1] == position:
            ranges[index][1] += 1
        else:
            index += 1
            ranges.insert(index, [position, position + 1])
        if index + 1 < len(ranges) and ranges[index][1] == ranges[index + 1][0]:
            ranges[index][1] = ranges.pop(index + 1)[1]

    def gaps(self, size: int) -> list[tuple[int, int]]:
        """What is left of a pass."""
        starts = [end for _, end in self._ranges]
        ends = [start for start, _ in self._ranges[1:]]
        return [gap for gap in zip(starts, [*ends, size], strict=True) if gap[0] < gap[1]]

    def state(self) -> State:
        """A position, if nothing after it is done."""
        first = self._ranges[0][1]
        if len(self._ranges) == 1:
            return first
        return {"from": first, "ahead": [list(one) for one in self._ranges[1:]]}


class RestStream(Stream):
    """Reads, in order, what is left of a pass that workers began in whatever order they got ready.

    Args:
        node: The plan.
        epoch: The pass.
        state: As `Done.state` gave it.
    """

    def __init__(self, node: Node, epoch: int, state: State) -> None:
        self._get = node.get
        self._epoch = epoch
        size = sys.maxsize if node.size is None else node.size
        self._done = Done(state, size)
        self._gaps = self._done.gaps(size)[::-1]

    def __next__(self) -> Datapoint:
        if not self._gaps:
            raise StopIteration
        position, end = self._gaps[-1]
        datapoint = self._get(self._epoch, position)
        self._done.add(position)
        self._gaps[-1:] = [(position + 1, end)] if position + 1 < end else []
        return datapoint

    def state(self) -> State:
        return self._done.state()
