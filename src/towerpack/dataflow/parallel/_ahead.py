"""A plan that is read ahead by workers: in order, or in whatever order datapoints get ready."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

from towerpack._core.errors import DataFlowError
from towerpack.dataflow._datapoints import Block, Datapoint, Positions, as_ints
from towerpack.dataflow._plan import Node
from towerpack.dataflow._stream import Done, State, Stream
from towerpack.dataflow.parallel._pool import Pool
from towerpack.dataflow.parallel._run import Run
from towerpack.dataflow.parallel._work import PlanWork, WorkSource

_MOST_JUMPS = 4


class Pass:
    """A run together with its pool, which is parked when the run is over.

    Args:
        pool: The workers.
        put_back: Takes the pool back.
        run: Begins the run.
    """

    def __init__(
        self, pool: Pool, put_back: Callable[[Pool], None], run: Callable[[Pool], Run]
    ) -> None:
        self._pool: Pool | None = pool
        self._put_back = put_back
        try:
            self.run = run(pool)
        except BaseException:
            self.close()
            raise

    def take(self) -> list[Datapoint] | None:
        """The datapoints of the next unit; `None` at the end.

        Raises:
            DataFlowError: The pass was interrupted before.
        """
        if self._pool is None:
            raise DataFlowError(
                "This pass was closed or interrupted.",
                fix="ds.iterate(state=iterator.state()) goes on where it was",
            )
        try:
            return self.run.take()
        except Exception:
            raise
        except BaseException:
            # Ctrl-C may have come between a message and what was to be done about it.
            self._pool.close()
            self.close()
            raise

    @property
    def closed(self) -> bool:
        """Whether it was closed or interrupted."""
        return self._pool is None

    def close(self) -> None:
        """Give up the run; the pool can take another one. May be called again."""
        pool, self._pool = self._pool, None
        if pool is not None:
            if hasattr(self, "run"):
                self.run.close()
            self._put_back(pool)

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not finalizing():
            self.close()


Begin = Callable[[Callable[[Pool], WorkSource]], Pass]
"""Begins a pass, with what is to be done in it: that may depend on the pool."""


def _positions(node: Node, epoch: int, gaps: list[tuple[int, int]], pool: Pool) -> PlanWork:
    return PlanWork(epoch, gaps, node.chunk, pool.options.workers)


class AheadNode(Node):
    """Reads a plan in order, ahead, with workers.

    What is not asked for in order is read directly, by the caller. Not for several threads.

    Args:
        inner: The plan.
        begin: Starts a pass over it.
    """

    def __init__(self, inner: Node, begin: Begin) -> None:
        self.inner = inner
        self.size = inner.size
        self._begin = begin
        self._pass: Pass | None = None
        self._rows: list[Datapoint] = []  # in reverse: the next one is the last
        self._epoch = -1
        self._next = -1
        self._jumps = 0

    def get(self, epoch: int, position: int) -> Datapoint:
        if position != self._next or epoch != self._epoch:
            if self._jumps >= _MOST_JUMPS:
                return self.inner.get(epoch, position)
            self._jump(epoch, position)
        if not self._rows:
            self._fill()
        self._next += 1
        datapoint = self._rows.pop()
        if not self._rows and self._next == self.size:
            self.close()
        return datapoint

    def read(self, epoch: int, positions: Positions) -> Block:
        return [self.get(epoch, position) for position in as_ints(positions)]

    def close(self) -> None:
        """End the pass."""
        self._rows.clear()
        self._epoch = self._next = -1
        running, self._pass = self._pass, None
        if running is not None:
            running.close()

    def _jump(self, epoch: int, position: int) -> None:
        # The first one, and that to the next epoch, are no jumps.
        self._jumps = self._jumps + 1 if position and self._epoch >= 0 else 0
        self.close()
        self._epoch, self._next = epoch, position

    def _fill(self) -> None:
        if self._pass is None or self._pass.closed:
            left = [(self._next, sys.maxsize if self.size is None else self.size)]
            self._pass = self._begin(partial(_positions, self.inner, self._epoch, left))
        rows = self._pass.take()
        if not rows:
            raise IndexError(f"there is no position {self._next}")
        rows.reverse()
        self._rows = rows


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
        begin: Begin,
    ) -> None:
        size = sys.maxsize if node.size is None else node.size
        self._done = Done(state, size)
        self._rows: list[Datapoint] = []
        self._position = 0
        self._ended = False
        gaps = self._done.gaps(size)
        self._pass = begin(partial(_positions, node, epoch, gaps))

    def __next__(self) -> Datapoint:
        if not self._rows:
            rows = None if self._ended else self._pass.take()
            if rows is None:
                self._ended = True
                self._pass.close()
                raise StopIteration
            _, self._position, _ = self._pass.run.taken or (0, 0, 0)
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
