"""A unit of work, from when it is issued until its datapoints are handed on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from towerpack.dataflow.parallel._job import Work
from towerpack.dataflow.parallel._memory import Slot
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

    def finish(self, value: Any, finished: int, error: BaseException | None) -> None:
        """Take what a worker made."""
        self.value, self.finished, self.error, self.done = value, finished, error, True

    def reset(self) -> None:
        """To be done again."""
        self.value, self.finished, self.error, self.done = None, 0, None, False
