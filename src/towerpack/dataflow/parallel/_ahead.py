"""A plan that is read ahead by workers."""

from __future__ import annotations

import sys
from collections.abc import Callable

from towerpack._core.errors import DataFlowError
from towerpack.dataflow._blocks import Block, Positions, as_ints
from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow._plan import Node
from towerpack.dataflow.parallel._crew import Crew
from towerpack.dataflow.parallel._run import Run

_MOST_JUMPS = 4


class Pass:
    """A run together with its crew, which is parked when the run is over.

    Args:
        crew: The workers.
        park: Takes the crew back.
        run: Begins the run.
    """

    def __init__(
        self, crew: Crew, park: Callable[[Crew], None], run: Callable[[Crew], Run]
    ) -> None:
        self._crew: Crew | None = crew
        self._park = park
        try:
            self.run = run(crew)
        except BaseException:
            self.close()
            raise

    def take(self) -> list[Datapoint] | None:
        """The datapoints of the next unit; `None` at the end.

        Raises:
            DataFlowError: The pass was interrupted before.
        """
        if self._crew is None:
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
            self._crew.close()
            self.close()
            raise

    @property
    def closed(self) -> bool:
        """Whether it was closed or interrupted."""
        return self._crew is None

    def close(self) -> None:
        """Give up the run; the crew can take another one. May be called again."""
        crew, self._crew = self._crew, None
        if crew is not None:
            if hasattr(self, "run"):
                self.run.close()
            self._park(crew)

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not finalizing():
            self.close()


class AheadNode(Node):
    """Reads a plan in order, ahead, with workers.

    What is not asked for in order is read directly, by the caller. Not for several threads.

    Args:
        inner: The plan.
        begin: Starts a pass over it, at an epoch and a position.
    """

    def __init__(self, inner: Node, begin: Callable[[int, int], Pass]) -> None:
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
            self._pass = self._begin(self._epoch, self._next)
        rows = self._pass.take()
        if not rows:
            raise IndexError(f"there is no position {self._next}")
        rows.reverse()
        self._rows = rows
