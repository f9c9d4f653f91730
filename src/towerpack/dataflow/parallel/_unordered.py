"""A plan that is read by workers in whatever order its datapoints get ready."""

from __future__ import annotations

import sys
from collections.abc import Callable

from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow._done import Done
from towerpack.dataflow._plan import Node
from towerpack.dataflow._stream import State, Stream
from towerpack.dataflow.parallel._ahead import Pass
from towerpack.dataflow.parallel._crew import Crew
from towerpack.dataflow.parallel._run import Adaptive, Piece, WorkSource, most_at_a_time
from towerpack.dataflow.parallel._unit import Unit


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
