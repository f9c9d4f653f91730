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

# Units in the queue of a worker: one to work on, and one so that the worker need not wait.
QUEUED = 2

_MOST_LENT = 64
_MOST_LENT_BYTES = 1 << 30


class Member(ABC):
    def __init__(self) -> None:
        self.queue: deque[Unit] = deque()
        self.since = time.monotonic()
        self.reported = 0.0
        self.started = True

    @abstractmethod
    def stacks(self) -> str: ...

    def assign(self, unit: Unit) -> None:
        if not self.queue:
            self.since = time.monotonic()
        self.queue.append(unit)

    def finished(self) -> Unit:
        self.since = time.monotonic()
        self.reported = 0.0
        return self.queue.popleft()


class Pool(ABC):
    def __init__(self, options: Options, slots: SlotPool) -> None:
        self.options = options
        self.slots = slots
        self.members: list[Any] = []
        self.again: deque[Unit] = deque()
        """Units to retry, because their worker died or raised an error."""
        self.job_key: Any = None
        self.job: Job | None = None
        self.restarts = 0
        """Number of restarted workers in this pass."""
        self._closed = False

    def begin(self, key: Any, job: Job) -> None:
        """Start a job. Workers keep the job of the last pass if `key` is the same."""
        self.restarts = 0
        if key != self.job_key:
            self.job_key, self.job = None, job
            self.prepare(job)
            self.job_key = key
        self.start_members()

    def abandon(self, units: Iterable[Unit]) -> None:
        at_work = {unit for member in self.members for unit in member.queue}
        for unit in units:
            unit.abandoned = True
            if unit not in at_work:  # done, or waiting for a retry
                self.release(unit)
        self.again.clear()
        self.cancel()

    def release(self, unit: Unit) -> None:
        if unit.slot is not None:
            self.slots.give_back(unit.slot)
            unit.slot = None

    def must_copy(self) -> bool:
        """Return whether to copy results out of shared memory: by option, or if slots are short."""
        count, nbytes = self.slots.lent
        return self.options.copy or count >= _MOST_LENT or nbytes >= _MOST_LENT_BYTES

    def prepare(self, job: Job) -> None:
        return

    def check(self) -> None:
        return

    def cancel(self) -> None:
        return

    @abstractmethod
    def start_members(self) -> None: ...

    @abstractmethod
    def submit(self, unit: Unit, member: Member) -> None: ...

    @property
    @abstractmethod
    def usable(self) -> bool:
        """Whether the pool is open and belongs to this process, not to its parent."""

    @abstractmethod
    def wait(self, timeout_s: float) -> None:
        """Process all messages of workers. If there are none, wait for one."""

    @abstractmethod
    def wake(self) -> None: ...

    @abstractmethod
    def take(self, unit: Unit) -> list[Datapoint]:
        """Return the datapoints of a finished unit. Free its slot, or lend it to their arrays."""

    @abstractmethod
    def close(self) -> None:
        """End the workers and free the memory. May be called several times."""
