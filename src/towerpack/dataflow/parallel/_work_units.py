"""Units of work: what is to be done, one after another as workers get free, and how it is done."""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from towerpack.dataflow._arena import lent_empty
from towerpack.dataflow._plan import Node
from towerpack.dataflow.datapoints import Block, Datapoint, Positions
from towerpack.dataflow.parallel._options import Options
from towerpack.dataflow.parallel._slots import Slot

# A unit costs some 50 µs besides its work; results that take long or are large go alone.
_WORTHWHILE_S = 8e-3
_LARGE_BYTES = 1 << 20
_MOST = 1 << 16

Work = tuple[int, int, int]
"""One piece of work: epoch, first position, position after the last."""

Inputs = tuple[int, Sequence[Datapoint]]
"""Datapoints that are sent with work, and the position of the first in what they are from."""


@dataclass
class Result:
    """What became of a piece of work: so many datapoints, and the error of the next one."""

    block: Block
    count: int
    error: BaseException | None = None


class SentNode(Node):
    """The datapoints that come with a piece of work: a source that workers cannot read."""

    size = None
    sent: Any = threading.local()  # `first` and `datapoints` of the work that a thread is at

    def read(self, epoch: int, positions: Positions) -> Block:
        # Of the last group that is to become one, there may be fewer.
        first = int(positions[0]) - self.sent.first
        return list(self.sent.datapoints[first : first + len(positions)])

    def get(self, epoch: int, position: int) -> Datapoint:
        return self.sent.datapoints[position - self.sent.first]


class Job:
    """What workers do in a pass: they read positions of a plan. Pickles by cloudpickle."""

    def __init__(self, node: Node, key: int) -> None:
        node.lay_into(lent_empty)
        self._node = node
        self._key = key

    def run(self, work: Work, inputs: Inputs | None = None) -> Result:
        epoch, start, stop = work
        if inputs is not None:
            SentNode.sent.first, SentNode.sent.datapoints = inputs
            result = self._one_by_one(epoch, start, stop)
            del SentNode.sent.datapoints
            return result
        if stop - start > 1:
            # Of an exception, read alone they show which one it was, and what those before it are.
            with contextlib.suppress(BaseException):
                return Result(self._node.read(epoch, range(start, stop)), stop - start)
        return self._one_by_one(epoch, start, stop)

    def seed_of(self, work: Work) -> int:
        """For code that draws from the global generators of `random` and NumPy."""
        epoch, start, _ = work
        return hash((self._key, epoch, start))

    def _one_by_one(self, epoch: int, start: int, stop: int) -> Result:
        rows: list[Datapoint] = []
        for position in range(start, stop):
            try:
                rows.append(self._node.get(epoch, position))
            except BaseException as error:  # noqa: BLE001  it is raised in the consumer
                return Result(rows, len(rows), error)
        return Result(rows, len(rows))


def place_of(work: Work) -> str:
    epoch, start, stop = work
    span = f" {start}" if stop - start == 1 else f"s {start}..{stop - 1}"
    return f"position{span} of epoch {epoch}"


@dataclass(eq=False)
class Unit:
    """What a worker does at a time, from when it is issued until its datapoints are handed on."""

    work: Work
    inputs: Inputs | None = None  # what it is done on, where workers cannot read it themselves
    slot: Slot | None = None  # where its result goes
    done: bool = False
    value: Any = None  # the result, or where in the slot it lies
    finished: int = 0  # how many datapoints of it are in `value`
    error: BaseException | None = None  # what ended it early
    seconds: float = 0.0
    nbytes: int = 0  # of a slot
    deaths: int = 0  # of workers at it
    abandoned: bool = False

    @property
    def count(self) -> int:
        return self.work[2] - self.work[1]

    def finish(self, value: Any, finished: int, error: BaseException | None) -> None:
        self.value, self.finished, self.error, self.done = value, finished, error, True

    def reset(self) -> None:
        self.finish(None, 0, None)
        self.done, self.deaths = False, 0

    def advance(self, group: int) -> None:
        """Keep what comes after the finished datapoints, each made of a group of `inputs`."""
        epoch, start, stop = self.work
        self.work = (epoch, start + self.finished, stop)
        if self.inputs is not None:
            first, datapoints = self.inputs
            taken = self.finished * group
            self.inputs = (first + taken, datapoints[taken:])
        self.finish(None, 0, self.error)


class WorkSource(ABC):
    """What is to be done, in order, `size` datapoints in a unit: more if they are cheap."""

    group: int = 1
    """How many inputs become one datapoint."""
    size: int = 1
    most: int = 1

    @abstractmethod
    def begin(self, options: Options, wake: Callable[[], None]) -> None:
        """Begin a pass; `wake` tells the consumer, from any thread, that there is work."""

    @abstractmethod
    def next_work(self) -> tuple[Work, Inputs | None] | None:
        """The next work; `None` if there is none, or none yet."""

    @abstractmethod
    def is_over(self) -> bool:
        """Whether there will be no more."""

    def raise_error(self) -> None:
        """Raise what keeps further work from coming; the next call to `next_work` tries again."""
        return

    def close(self) -> None:
        """End: nobody asks for work any more."""
        return

    def observe(self, unit: Unit) -> None:
        cheap = unit.seconds < _WORTHWHILE_S / 2 and unit.nbytes < _LARGE_BYTES / 2
        if cheap and unit.count == self.size:
            self.size = min(2 * self.size, self.most)


class PlanWork(WorkSource):
    """Runs of positions in the gaps left of a pass; all workers have some until its end."""

    def __init__(self, chunk: int, epoch: int, gaps: list[tuple[int, int]]) -> None:
        self.size = chunk
        self._epoch = epoch
        self._gaps = gaps[::-1]

    def begin(self, options: Options, wake: Callable[[], None]) -> None:
        left = sum(stop - start for start, stop in self._gaps)
        self.most = max(1, min(_MOST, left // (4 * options.workers)))
        self.size = min(self.size, self.most)

    def next_work(self) -> tuple[Work, Inputs | None] | None:
        if not self._gaps:
            return None
        start, end = self._gaps.pop()
        stop = min(start + self.size, end)
        if stop < end:
            self._gaps.append((stop, end))
        return (self._epoch, start, stop), None

    def is_over(self) -> bool:
        return not self._gaps
