from __future__ import annotations

import sys
from collections.abc import Callable

from towerpack.dataflow._iteration_state import Done, State, Stream, Tally
from towerpack.dataflow._plan import Node
from towerpack.dataflow.datapoints import Datapoint
from towerpack.dataflow.parallel._engine import Engine
from towerpack.dataflow.parallel._reader_thread import Reader
from towerpack.dataflow.parallel._work_units import PlanWork, WorkSource

Begin = Callable[[WorkSource], Engine]
"""Function that starts a pass over a source of work."""


class AheadNode(Node):
    """Node that reads another node in order with workers, and other positions directly."""

    def __init__(self, inner: Node, begin: Begin) -> None:
        self.inner = inner
        self.size = inner.size
        self._begin = begin
        self._engine: Engine | None = None
        self._rows: list[Datapoint] = []  # in reverse order
        self._epoch: int = -1
        self._next = -1

    def get(self, epoch: int, position: int) -> Datapoint:
        if position != self._next or epoch != self._epoch:
            jumped = epoch == self._epoch
            self.close()
            self._epoch, self._next = epoch, position + jumped
            if jumped:
                return self.inner.get(epoch, position)
        if not self._rows:
            self._fill()
        self._next += 1
        datapoint = self._rows.pop()
        if not self._rows and self._next == self.size:
            self.close()
        return datapoint

    def close(self) -> None:
        self._rows.clear()
        self._epoch = self._next = -1
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _fill(self) -> None:
        if self._engine is None or self._engine.closed:
            left = [(self._next, sys.maxsize if self.size is None else self.size)]
            self._engine = self._begin(PlanWork(self.inner.chunk, self._epoch, left))
        rows = self._engine.take()
        if not rows:
            raise IndexError(f"position {self._next} is out of range")
        self._rows = rows[::-1]


class UnorderedStream(Stream):
    """Stream of a plan's datapoints in the order in which workers finish them."""

    def __init__(self, node: Node, epoch: int, state: State, begin: Begin) -> None:
        size = sys.maxsize if node.size is None else node.size
        self._done = Done(state, size)
        self._rows: list[Datapoint] = []
        self._position = 0
        self._ended = False
        self._engine = begin(PlanWork(node.chunk, epoch, self._done.gaps(size)))

    def __next__(self) -> Datapoint:
        if not self._rows:
            rows = None if self._ended else self._engine.take()
            if rows is None:
                self._ended = True
                self._engine.close()
                raise StopIteration
            self._position = self._engine.taken[1]
            self._rows = rows[::-1]
        datapoint = self._rows.pop()
        self._done.add(self._position)
        self._position += 1
        return datapoint

    def state(self) -> State:
        return self._done.state()

    def close(self) -> None:
        self._rows.clear()
        self._engine.close()


class ReadStream(Stream):
    """Stream of one result per group of datapoints, each followed by `None` for the others."""

    def __init__(self, reader: Reader, begin: Begin, state: State, tally: Tally | None) -> None:
        self._reader = reader
        self._state = state
        self._total = tally or Tally()
        self._used = 0
        self._results: list[Datapoint] = []
        self._ended = False
        self._engine = begin(reader)

    def __next__(self) -> Datapoint:
        first = self._used % self._reader.group == 0
        if first and not self._results and not self._ended:
            self._results = (self._engine.take() or [])[::-1]
        if not self._reader.reads:
            self._end()
            raise StopIteration
        self._state, skipped = self._reader.reads.popleft()
        self._total.skipped += skipped
        self._used += 1
        return self._results.pop() if first and self._results else None

    def state(self) -> State:
        return self._state

    def close(self) -> None:
        self._engine.close()

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._state, skipped = self._reader.last
            self._total.skipped += skipped
            self._engine.close()  # frees the workers for the next pass
