"""The workers of a parallel stage and their memory, kept from pass to pass."""

from __future__ import annotations

import math
import os
import time
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Any, Literal, cast

from towerpack._core.errors import ConfigError
from towerpack.dataflow._arguments import integer_of
from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow.parallel._memory import SlotPool
from towerpack.dataflow.parallel._work import Job, Unit

Backend = Literal["process", "thread"]
OnWorkerDeath = Literal["raise", "restart"]
Start = Literal["fresh", "fork"]

# One that it works on, and one so that it need not wait for the next.
QUEUED = 2

_MOST_LENT = 64
_MOST_LENT_BYTES = 1 << 30
_MOST_IDLE = 2  # for two passes side by side, each followed by another


@dataclass(frozen=True)
class Options:
    """What all parallel stages can be told; see `PrefetchData` for the meaning."""

    workers: int
    backend: Backend | None = None
    prefetch: int | None = None
    ordered: bool = True
    on_worker_death: OnWorkerDeath = "raise"
    max_restarts: int = 100
    stall_s: float = 60.0
    copy: bool = False
    start: Start = "fresh"

    def __post_init__(self) -> None:
        _one_of("backend", self.backend or "process", ("process", "thread"))
        _one_of("on_worker_death", self.on_worker_death, ("raise", "restart"))
        _one_of("start", self.start, ("fresh", "fork"))
        integer_of(self.workers, "num_proc", 0)
        integer_of(1 if self.prefetch is None else self.prefetch, "num_prefetch", 1)
        integer_of(self.max_restarts, "max_restarts", 0)
        if not isinstance(cast("object", self.stall_s), Real) or not self.stall_s > 0:
            raise ConfigError(
                f"stall_s={self.stall_s!r} is no time to wait.", expected="seconds, above 0"
            )

    def with_workers(self, count: int, *, gathering: bool) -> Options:
        """The same with another number of workers, and a backend.

        Where they only gather rows of arrays, threads are as parallel as processes are, start at
        once, and take from the consumer's GIL no more than messages would.
        """
        own = self.start == "fresh" and self.on_worker_death == "raise"
        backend = self.backend or ("thread" if gathering and own else "process")
        return replace(self, workers=count, backend=backend)


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        choices = " or ".join(f'"{one}"' for one in allowed)
        raise ConfigError(f"There is no {name}={value!r}.", expected=choices)


def usable_cpus() -> int:
    """CPUs that this process may use: by affinity, and by the quota of its control group."""
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(count, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no such file, or "max"
        return count


class Member(ABC):
    """One worker, as the consumer sees it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.queue: deque[Unit] = deque()
        self.since = time.monotonic()
        self.reported = 0.0
        self.ready = True
        """Whether it has started."""

    @abstractmethod
    def stacks(self) -> str:
        """What it is doing: the stacks of its threads."""

    def assign(self, unit: Unit) -> None:
        """A unit was put in its queue."""
        if not self.queue:
            self.since = time.monotonic()
        self.queue.append(unit)

    def finished(self, seq: int) -> Unit | None:
        """Take the unit that is done from the queue."""
        self.since = time.monotonic()
        self.reported = 0.0
        self.ready = True
        if self.queue and self.queue[0].seq == seq:
            return self.queue.popleft()
        return None


class Pool(ABC):
    """Workers, what they work on, and their memory."""

    def __init__(self, options: Options, slots: SlotPool) -> None:
        self.options = options
        self.slots = slots
        self.members: list[Any] = []
        self.lost: deque[Unit] = deque()
        """Units whose worker died, to be issued again."""
        self.job_key: Any = None
        self.job: Job | None = None
        self.job_number = 0
        self.restarts = 0
        """Of workers, in this pass."""
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
        self.restarts = 0
        if key != self.job_key:
            self.job_number += 1
            self.job_key, self.job = None, job
            self.prepare(job)
            self.job_key = key
        self.hire()

    def ready_member(self) -> Member | None:
        """The worker with least to do, unless all have enough."""
        member = min(self.members, key=lambda one: len(one.queue), default=None)
        return member if member is not None and len(member.queue) < QUEUED else None

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

    def prepare(self, job: Job) -> None:
        """Get a new job ready for all workers."""
        return

    def check(self) -> None:
        """Find workers that ended unnoticed."""
        return

    @abstractmethod
    def hire(self) -> None:
        """Start workers until there are as many as wanted."""

    @abstractmethod
    def submit(self, unit: Unit, member: Member) -> None:
        """Issue a unit to a worker."""

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


class IdlePools:
    """The pools of one stage that no pass uses now."""

    def __init__(self) -> None:
        self._pools: list[Pool] = []
        self._closed = False

    def take(self, options: Options) -> Pool:
        """A pool: one that waits here, or a new one."""
        for pool in reversed(self._pools):
            if pool.usable and pool.options == options:
                self._pools.remove(pool)
                return pool
        # Imported when needed: what they import is a third of importing the package.
        if options.backend == "thread":
            from towerpack.dataflow.parallel._thread import ThreadPool

            return ThreadPool(options)
        from towerpack.dataflow.parallel._process import ProcessPool

        return ProcessPool(options)

    def put_back(self, pool: Pool) -> None:
        """Keep a pool for the next pass."""
        if self._closed or not pool.usable:
            pool.close()
            return
        self._pools.append(pool)
        while len(self._pools) > _MOST_IDLE:
            self._pools.pop(0).close()

    def close(self) -> None:
        """End all that wait here, and those that come back."""
        self._closed = True
        while self._pools:
            self._pools.pop().close()
