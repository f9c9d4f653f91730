"""A plan that is read by workers in whatever order its datapoints get ready."""

from __future__ import annotations

import bisect
import sys
from collections.abc import Callable
from typing import Any, cast

from towerpack._core.errors import StateError
from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow._plan import Node
from towerpack.dataflow._stream import State, Stream, check_count
from towerpack.dataflow.parallel._ahead import Pass
from towerpack.dataflow.parallel._crew import Crew
from towerpack.dataflow.parallel._run import Adaptive, Piece, WorkSource, most_at_a_time
from towerpack.dataflow.parallel._unit import Unit


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
            self._ranges = [[0, fields["from"]], *([a, b] for a, b in fields["ahead"])]
        elif state is not None:
            self._ranges = [[0, check_count(state, size)]]
        edges = [edge for one in self._ranges for edge in one]
        if edges != sorted(edges) or edges[-1] > size:
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


class GapsWork(Adaptive, WorkSource):
    """Runs of positions in what is left of a pass.

    Args:
        epoch: The pass.
        gaps: What is left.
        chunk: How many positions to begin with.
        most: How many at most.
    """

    def __init__(self, epoch: int, gaps: list[tuple[int, int]], chunk: int, most: int) -> None:
        Adaptive.__init__(self, chunk, most)
        self._epoch = epoch
        self._gaps = gaps[::-1]

    def next_piece(self) -> Piece | None:
        if not self._gaps:
            return None
        start, end = self._gaps.pop()
        stop = min(start + self.size, end)
        if stop < end:
            self._gaps.append((stop, end))
        return Piece((self._epoch, start, stop), stop - start)

    def ended(self) -> bool:
        return not self._gaps

    def rest(self, unit: Unit) -> Piece:
        epoch, start, stop = unit.work
        return Piece((epoch, start + unit.finished, stop), unit.count - unit.finished)


class UnorderedStream(Stream):
    """Hands on what is ready.

    Args:
        node: The plan.
        epoch: The pass.
        state: As `state()` gave it, or that of the ordered stream.
        begin: Starts a pass over work.
    """

    def __init__(
        self,
        node: Node,
        epoch: int,
        state: State,
        begin: Callable[[Callable[[Crew], WorkSource]], Pass],
    ) -> None:
        size = sys.maxsize if node.size is None else node.size
        self._done = Done(state, size)
        self._rows: list[Datapoint] = []
        self._position = 0
        self._ended = False
        gaps = self._done.gaps(size)

        def work(crew: Crew) -> WorkSource:
            most = most_at_a_time(node.size, crew.options.workers)
            return GapsWork(epoch, gaps, node.chunk, most)

        self._pass = begin(work)

    def __next__(self) -> Datapoint:
        if not self._rows:
            rows = None if self._ended else self._pass.take()
            if rows is None:
                self._ended = True
                self._pass.close()
                raise StopIteration
            self._position = self._pass.run.taken[1]
            self._rows = rows[::-1]
        datapoint = self._rows.pop()
        self._done.add(self._position)
        self._position += 1
        return datapoint

    def state(self) -> State:
        return self._done.state()

    def close(self) -> None:
        self._rows.clear()
        self._pass.close()
