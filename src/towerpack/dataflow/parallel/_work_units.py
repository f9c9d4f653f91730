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

# A unit has an overhead of some 50 µs. Units with slow or large results have one datapoint.
_WORTHWHILE_S = 8e-3
_LARGE_BYTES = 1 << 20
_MOST = 1 << 16

Work = tuple[int, int, int]
"""Epoch, first position (inclusive), and last position (exclusive)."""

Inputs = tuple[int, Sequence[Datapoint]]
"""Position of the first datapoint in its source, and the datapoints that are sent with work."""


@dataclass
class Result:
    """Datapoints of a unit of work, and the error of the datapoint that follows them, if any."""

    block: Block
    count: int
    error: BaseException | None = None


class SentNode(Node):
    """Node of datapoints that the consumer sends to a worker along with the work."""

    size = None
    sent: Any = threading.local()  # `first` and `datapoints` of the current work

    def read(self, epoch: int, positions: Positions) -> Block:
        # The last group may have fewer datapoints.
        first = int(positions[0]) - self.sent.first
        return list(self.sent.datapoints[first : first + len(positions)])

    def get(self, epoch: int, position: int) -> Datapoint:
        return self.sent.datapoints[position - self.sent.first]


class Job:
    """Work of a pass: reading positions of a node. Pickled with cloudpickle."""

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
            # After an exception, reading one by one shows which datapoint raised it.
            with contextlib.suppress(BaseException):
                return Result(self._node.read(epoch, range(start, stop)), stop - start)
        return self._one_by_one(epoch, start, stop)

    def seed_of(self, work: Work) -> int:
        epoch, start, _ = work
        return hash((self._key, epoch, start))

    def _one_by_one(self, epoch: int, start: int, stop: int) -> Result:
        rows: list[Datapoint] = []
        for position in range(start, stop):
            try:
                rows.append(self._node.get(epoch, position))
            except BaseException as error:  # noqa: BLE001  raised in the consumer
                return Result(rows, len(rows), error)
        return Result(rows, len(rows))


def place_of(work: Work) -> str:
    epoch, start, stop = work
    span = f" {start}" if stop - start == 1 else f"s {start}..{stop - 1}"
    return f"position{span} of epoch {epoch}"


@dataclass(eq=False)
class Unit:
    """Unit of work, assigned to one worker, and its result."""

    work: Work
    inputs: Inputs | None = None  # input datapoints, if workers cannot read them
    slot: Slot | None = None  # memory for the result
    done: bool = False
    value: Any = None  # the result, or its extents in the slot
    finished: int = 0  # number of datapoints in `value`
    error: BaseException | None = None  # error of the next datapoint
    seconds: float = 0.0
    nbytes: int = 0  # bytes needed in a slot
    deaths: int = 0  # number of workers that died at this unit
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
        """Remove the finished datapoints from this unit. Each was made of `group` inputs."""
        epoch, start, stop = self.work
        self.work = (epoch, start + self.finished, stop)
        if self.inputs is not None:
            first, datapoints = self.inputs
            taken = self.finished * group
            self.inputs = (first + taken, datapoints[taken:])
        self.finish(None, 0, self.error)


class WorkSource(ABC):
    """Source of units of work, in order. Units grow while datapoints are fast to compute."""

    group: int = 1
    """Number of inputs for each datapoint."""
    size: int = 1
    """Number of datapoints in a unit."""
    most: int = 1
    """Limit of `size`."""

    @abstractmethod
    def begin(self, options: Options, wake: Callable[[], None]) -> None:
        """Begin a pass. Any thread may call `wake` when there is new work."""

    @abstractmethod
    def next_work(self) -> tuple[Work, Inputs | None] | None:
        """Return the next work, or `None` if there is no work at present."""

    @abstractmethod
    def is_over(self) -> bool: ...

    def raise_error(self) -> None:
        """Raise the error that prevents further work. The next call of `next_work` retries."""
        return

    def close(self) -> None:
        return

    def observe(self, unit: Unit) -> None:
        cheap = unit.seconds < _WORTHWHILE_S / 2 and unit.nbytes < _LARGE_BYTES / 2
        if cheap and unit.count == self.size:
            self.size = min(2 * self.size, self.most)


class PlanWork(WorkSource):
    """Source of the positions of a pass that have not been read."""

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
