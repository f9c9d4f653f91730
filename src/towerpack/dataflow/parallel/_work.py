"""Units of work: runs of positions of a plan, made one after another as workers get free."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from towerpack.dataflow.parallel._job import Inputs, Work
from towerpack.dataflow.parallel._memory import Slot
from towerpack.dataflow.parallel._packing import Extents

# A unit costs some 50 µs besides its work; results that take long or are large go alone.
_WORTHWHILE_S = 8e-3
_LARGE_BYTES = 1 << 20
_MOST = 1 << 16


@dataclass(eq=False)
class Unit:
    """What a worker does at a time, from when it is issued until its datapoints are handed on.

    Attributes:
        seq: Names it; grows.
        work: For the job.
        inputs: What the work is done on, where workers cannot read it themselves.
        sent: Where in the slot `inputs` lie.
        slot: Where its result goes.
        outgrown: The slot that was too small, from which a worker still copies.
        done: Whether it is finished.
        value: The result, or where in the slot it lies.
        finished: How many datapoints of it are in `value`.
        error: What ended it early.
        seconds: What it took.
        nbytes: What it took of a slot.
        deaths: How many workers died of it.
        abandoned: Nobody waits for it any more.
    """

    seq: int
    work: Work
    inputs: Inputs | None = None
    sent: Extents | None = None
    slot: Slot | None = None
    outgrown: Slot | None = None
    done: bool = False
    value: Any = None
    finished: int = 0
    error: BaseException | None = None
    seconds: float = 0.0
    nbytes: int = 0
    deaths: int = 0
    abandoned: bool = False

    @property
    def count(self) -> int:
        """Datapoints that it gives."""
        return self.work[2] - self.work[1]

    def finish(self, value: Any, finished: int, error: BaseException | None) -> None:
        """Take what a worker made."""
        self.value, self.finished, self.error, self.done = value, finished, error, True

    def reset(self) -> None:
        """To be done again."""
        self.value, self.finished, self.error, self.done = None, 0, None, False
        self.deaths = 0

    def advance(self, group: int) -> None:
        """Keep what comes after the finished datapoints, which are handed on.

        Args:
            group: How many of `inputs` become one datapoint.
        """
        epoch, start, stop = self.work
        self.work = (epoch, start + self.finished, stop)
        if self.inputs is not None:
            first, datapoints = self.inputs
            taken = self.finished * group
            self.inputs = (first + taken, datapoints[taken:])
        self.finish(None, 0, self.error)


class WorkSource(ABC):
    """What is to be done, in order.

    Args:
        size: How many datapoints make a unit, to begin with: later so many that the work outweighs
            the handing over.
        most: Never more.
    """

    group: int = 1
    """How many inputs become one datapoint."""

    def __init__(self, size: int, most: int) -> None:
        self.size = min(size, most)
        self._most = most

    @abstractmethod
    def next_work(self) -> tuple[Work, Inputs | None] | None:
        """The next work; `None` if there is none, or none yet."""

    @abstractmethod
    def ended(self) -> bool:
        """Whether there will be no more."""

    def raise_error(self) -> None:
        """Raise what keeps further work from coming.

        Raises:
            Exception: Any. The next call to `next_work` tries again.
        """
        return

    def close(self) -> None:
        """Nobody asks for work any more."""
        return

    def observe(self, count: int, seconds: float, nbytes: int) -> None:
        """Learn what a unit cost."""
        if count == self.size and seconds < _WORTHWHILE_S / 2 and nbytes < _LARGE_BYTES / 2:
            self.size = min(2 * self.size, self._most)


class PlanWork(WorkSource):
    """Runs of positions in what is left of a pass.

    Args:
        epoch: The pass.
        gaps: What is left: the first position, and the one after the last.
        chunk: How many positions to begin with.
        workers: Who shares the pass: all have work until its end.
    """

    def __init__(self, epoch: int, gaps: list[tuple[int, int]], chunk: int, workers: int) -> None:
        left = sum(stop - start for start, stop in gaps)
        super().__init__(chunk, max(1, min(_MOST, left // (4 * workers))))
        self._epoch = epoch
        self._gaps = gaps[::-1]

    def next_work(self) -> tuple[Work, Inputs | None] | None:
        if not self._gaps:
            return None
        start, end = self._gaps.pop()
        stop = min(start + self.size, end)
        if stop < end:
            self._gaps.append((stop, end))
        return (self._epoch, start, stop), None

    def ended(self) -> bool:
        return not self._gaps
