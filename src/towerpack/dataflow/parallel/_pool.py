"""The workers of a parallel stage and their memory, kept from pass to pass."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from towerpack._core.logs import get_logger
from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow.parallel._job import Job
from towerpack.dataflow.parallel._memory import SlotPool
from towerpack.dataflow.parallel._options import Options
from towerpack.dataflow.parallel._work import Unit

log = get_logger(__name__)

# One that it works on, and one so that it need not wait for the next.
QUEUED = 2

_MOST_LENT = 64
_MOST_LENT_BYTES = 1 << 30


@dataclass
class Stats:
    """What a pool has done in a pass, for finding what is slow.

    Attributes:
        units: Units of work finished.
        datapoints: Datapoints in them.
        nbytes: Bytes that came through slots.
        busy_s: Seconds that workers worked, one number for each.
        waited_s: Seconds that the consumer waited.
        full_s: Seconds in which workers had nothing to do, as enough was ready.
        elapsed_s: Seconds since the pass began.
        restarts: Workers that were replaced.
        copies: Units that were copied, as the consumer kept so many.
    """

    units: int = 0
    datapoints: int = 0
    nbytes: int = 0
    busy_s: list[float] = field(default_factory=list[float])
    waited_s: float = 0.0
    full_s: float = 0.0
    elapsed_s: float = 0.0
    restarts: int = 0
    copies: int = 0

    def count(self, unit: Unit) -> None:
        """A unit is finished."""
        self.units += 1
        self.datapoints += unit.finished
        self.nbytes += unit.nbytes

    @property
    def idle(self) -> float:
        """The share of their time that workers did not work."""
        available = self.elapsed_s * max(1, len(self.busy_s))
        return max(0.0, 1.0 - sum(self.busy_s) / available) if available else 0.0


class Member(ABC):
    """One worker, as the consumer sees it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.queue: deque[Unit] = deque()
        self.since = time.monotonic()
        self.reported = 0.0
        self.ready = True
        """Whether it has started."""
        self.busy_s = 0.0

    @abstractmethod
    def stacks(self) -> str:
        """What it is doing: the stacks of its threads."""

    def assign(self, unit: Unit) -> None:
        """A unit was put in its queue."""
        if not self.queue:
            self.since = time.monotonic()
        self.queue.append(unit)

    def finished(self, seq: int, seconds: float) -> Unit | None:
        """Take the unit that is done from the queue."""
        self.since = time.monotonic()
        self.reported = 0.0
        self.ready = True
        """Whether it has started."""
        self.busy_s += seconds
        if self.queue and self.queue[0].seq == seq:
            return self.queue.popleft()
        return None


class Pool(ABC):
    """Workers, what they work on, and their memory.

    Args:
        options: How many, and what to do when one dies.
        slots: The memory.
    """

    def __init__(self, options: Options, slots: SlotPool) -> None:
        self.options = options
        self.slots = slots
        self.members: list[Member] = []
        self.lost: deque[Unit] = deque()
        """Units whose worker died, to be issued again."""
        self.job_key: Any = None
        self.job: Job | None = None
        self.job_number = 0
        self.stats = Stats()
        self.told = False
        """Whether the consumer was told that it keeps many results."""
        self._seq = 0
        self._closed = False

    def next_seq(self) -> int:
        """The name of one more unit."""
        self._seq += 1
        return self._seq

    def begin(self, key: Any, job: Job) -> None:
        """Take up a job; one with the key of the last is known already."""
        self.stats = Stats()
        for member in self.members:
            member.busy_s = 0.0
        if key is None or key != self.job_key:
            self.job_number += 1
            self.job_key, self.job = None, job
            self.prepare(job)
            self.job_key = key
        self.hire()

    def ready_member(self) -> Member | None:
        """The worker with least to do, unless all have enough."""
        if not self.members:
            return None
        member = min(self.members, key=lambda one: len(one.queue))
        return member if len(member.queue) < QUEUED else None

    def abandon(self, units: list[Unit]) -> None:
        """Forget units: nobody waits for them any more."""
        at_work = {unit for member in self.members for unit in member.queue}
        units = [*units, *self.lost]
        self.lost.clear()
        for unit in units:
            unit.abandoned = True
            if unit not in at_work:  # done, or to be issued again
                self.release(unit)
        self.cancel(self._seq)

    def release_outgrown(self, unit: Unit) -> None:
        """Give back the slot that was too small for a unit: nobody reads it any more."""
        if unit.outgrown is not None:
            self.slots.give_back(unit.outgrown)
            unit.outgrown = None

    def release(self, unit: Unit) -> None:
        """Give back the slots of a unit."""
        self.release_outgrown(unit)
        if unit.slot is not None:
            self.slots.give_back(unit.slot)
            unit.slot = None

    def keeps_too_much(self) -> bool:
        """Whether the consumer keeps so many results that it is given copies of further ones."""
        count, nbytes = self.slots.lent
        return count >= _MOST_LENT or nbytes >= _MOST_LENT_BYTES

    @abstractmethod
    def prepare(self, job: Job) -> None:
        """Get a new job ready for all workers."""

    @abstractmethod
    def hire(self) -> None:
        """Start workers until there are as many as wanted."""

    @abstractmethod
    def submit(self, unit: Unit, member: Member) -> None:
        """Issue a unit to a worker."""

    @abstractmethod
    def check(self) -> None:
        """Find workers that ended unnoticed."""

    @property
    @abstractmethod
    def usable(self) -> bool:
        """Whether it is open, and of this process and not of one that forked it."""

    @abstractmethod
    def wait(self, timeout_s: float) -> None:
        """Take what workers have to say; wait for the first of it."""

    @abstractmethod
    def wake(self) -> None:
        """End a `wait`, from another thread."""

    @abstractmethod
    def own_copy(self, value: Any) -> Any:
        """An object that is no array and no container, safe from later changes where possible."""

    @abstractmethod
    def cancel(self, seq: int) -> None:
        """Tell workers that units up to `seq` need not be done."""

    @abstractmethod
    def take(self, unit: Unit, *, copy: bool) -> list[Datapoint]:
        """The datapoints of a finished unit. The slot is given back, or lent."""

    @abstractmethod
    def close(self) -> None:
        """End the workers and free the memory. May be called again."""
