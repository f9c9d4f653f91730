"""The workers of a parallel stage and their memory, kept from pass to pass."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from typing import Any

from towerpack.dataflow.datapoints import Datapoint
from towerpack.dataflow.parallel._options import Options
from towerpack.dataflow.parallel._slots import SlotPool
from towerpack.dataflow.parallel._work_units import Job, Unit

# One that it works on, and one so that it need not wait for the next.
QUEUED = 2

_MOST_LENT = 64
_MOST_LENT_BYTES = 1 << 30


class Member(ABC):
    """One worker, as the consumer sees it."""

    def __init__(self) -> None:
        self.queue: deque[Unit] = deque()
        self.since = time.monotonic()
        self.reported = 0.0
        self.started = True

    @abstractmethod
    def stacks(self) -> str:
        """What its threads are doing."""

    def assign(self, unit: Unit) -> None:
        if not self.queue:
            self.since = time.monotonic()
        self.queue.append(unit)

    def finished(self) -> Unit:
        self.since = time.monotonic()
        self.reported = 0.0
        return self.queue.popleft()


class Pool(ABC):
    """Workers, what they work on, and their memory."""

    def __init__(self, options: Options, slots: SlotPool) -> None:
        self.options = options
        self.slots = slots
        self.members: list[Any] = []
        self.again: deque[Unit] = deque()
        """Units to be issued again: their worker died, or they ended in an error."""
        self.job_key: Any = None
        self.job: Job | None = None
        self.restarts = 0
        """Of workers, in this pass."""
        self._closed = False

    def begin(self, key: Any, job: Job) -> None:
        """Take up a job; one with the key of the last is known already."""
        self.restarts = 0
        if key != self.job_key:
            self.job_key, self.job = None, job
            self.prepare(job)
            self.job_key = key
        self.start_members()

    def abandon(self, units: Iterable[Unit]) -> None:
        """Forget units: nobody waits for them any more."""
        at_work = {unit for member in self.members for unit in member.queue}
        for unit in units:
            unit.abandoned = True
            if unit not in at_work:  # done, or to be issued again
                self.release(unit)
        self.again.clear()
        self.cancel()

    def release(self, unit: Unit) -> None:
        if unit.slot is not None:
            self.slots.give_back(unit.slot)
            unit.slot = None

    def must_copy(self) -> bool:
        """Whether results get memory of their own, also because the consumer keeps very many."""
        count, nbytes = self.slots.lent
        return self.options.copy or count >= _MOST_LENT or nbytes >= _MOST_LENT_BYTES

    def prepare(self, job: Job) -> None:
        """Get a new job ready for all workers."""
        return

    def check(self) -> None:
        """Find workers that ended unnoticed."""
        return

    def cancel(self) -> None:
        """Tell workers that what was issued need not be done."""
        return

    @abstractmethod
    def start_members(self) -> None:
        """Start workers until there are as many as wanted."""

    @abstractmethod
    def submit(self, unit: Unit, member: Member) -> None:
        """Issue a unit to a worker."""

    @property
    @abstractmethod
    def usable(self) -> bool:
        """Whether it is open, and not of a process that forked this one."""

    @abstractmethod
    def wait(self, timeout_s: float) -> None:
        """Take what workers have to say; wait for the first of it."""

    @abstractmethod
    def wake(self) -> None:
        """End a `wait`, from another thread."""

    @abstractmethod
    def take(self, unit: Unit) -> list[Datapoint]:
        """The datapoints of a finished unit. The slot is given back, or lent."""

    @abstractmethod
    def close(self) -> None:
        """End the workers and free the memory. May be called again."""
