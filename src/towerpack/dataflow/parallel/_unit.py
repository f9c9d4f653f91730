"""A unit of work, from when it is issued until its datapoints are handed on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from towerpack.dataflow.parallel._job import Work
from towerpack.dataflow.parallel._layout import Layout, shares
from towerpack.dataflow.parallel._memory import Bytes, Slot
from towerpack.dataflow.parallel._packing import Parcel


@dataclass(eq=False)
class Unit:
    """What a worker does at a time.

    Attributes:
        seq: Names it; grows.
        work: For the job.
        count: Datapoints in it.
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
        division: Its parts, while it is one batch that several workers make.
    """

    seq: int
    work: Work
    count: int
    inputs: Any = None
    sent: Parcel | None = None
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
    division: Division | None = None

    def finish(self, value: Any, finished: int, error: BaseException | None) -> None:
        """Take what a worker made."""
        self.value, self.finished, self.error, self.done = value, finished, error, True

    def reset(self) -> None:
        """To be done again."""
        self.value, self.finished, self.error, self.done = None, 0, None, False


@dataclass(eq=False)
class Part(Unit):
    """Some rows of a unit that is one batch; `finished` is 1 if they were laid where they belong.

    Attributes:
        whole: The unit.
        number: Counts the parts of a unit.
        rows: The first, and the one after the last.
    """

    whole: Unit | None = None
    number: int = 0
    rows: tuple[int, int] = (0, 0)


class Division:
    """The parts of a unit that is one batch. Together they write it into its slot.

    Args:
        whole: The unit.
        layout: Where in the slot its components lie.
        count: How many parts.
        next_seq: Names units.
    """

    def __init__(
        self, whole: Unit, layout: Layout, count: int, next_seq: Callable[[], int]
    ) -> None:
        self.layout = layout
        self.memory: Bytes | None = None
        """For threads."""
        self.parts = [
            Part(next_seq(), whole.work, 1, whole=whole, number=number, rows=rows)
            for number, rows in enumerate(shares(layout.rows, count))
        ]

    @property
    def over(self) -> bool:
        """Whether nobody works on a part any more."""
        return all(part.done for part in self.parts)

    @property
    def complete(self) -> bool:
        """Whether the batch lies in its slot."""
        return all(part.finished for part in self.parts)

    @property
    def error(self) -> BaseException | None:
        """What a part ended with: the death of its worker."""
        return next((part.error for part in self.parts if part.error is not None), None)

    @property
    def seconds(self) -> float:
        """What the parts took in all."""
        return sum(part.seconds for part in self.parts)
