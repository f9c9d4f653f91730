"""One pass with a pool: work is issued ahead, and its results are taken in order."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from towerpack._core.errors import WorkerError
from towerpack._core.logs import get_logger
from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow.parallel._job import Job, Work
from towerpack.dataflow.parallel._pool import Pool, Stats
from towerpack.dataflow.parallel._work import Unit, WorkSource

log = get_logger(__name__)

_POLL_S = 0.5
_START_S = 30.0
# A worker's death is raised in its turn, unless what comes before it takes longer.
_DEATH_PATIENCE_S = 0.5
_SPARE_SLOTS = 4


class Run:
    """The engine of one pass.

    Args:
        pool: Its workers; they are this run's until `close`.
        job: What they do.
        key: Equal for equal jobs, which are sent only once.
        source: Makes what is to be done.
        pipeline: How messages name it.
    """

    def __init__(
        self,
        pool: Pool,
        job: Job,
        key: Any,
        source: Callable[[Pool], WorkSource],
        pipeline: str,
    ) -> None:
        self._pool = pool
        self._job = job
        self._pipeline = pipeline
        self._order: deque[Unit] = deque()
        self._again: deque[Unit] = deque()
        self._outstanding = 0
        self._checked = 0.0
        self.taken: Work | None = None
        """The work whose datapoints were taken last."""
        self._left = time.monotonic()
        self._begun = self._left
        pool.begin(key, job)
        self._stats = pool.stats
        self._over = False
        self._source = source(pool)

    def take(self) -> list[Datapoint] | None:
        """The datapoints of the next unit; `None` at the end.

        Raises:
            Exception: What a datapoint raised, after those before it were taken. The next call
                tries it again.
        """
        self._count_full()
        self._pool.wait(0.0)
        waited_since: float | None = None
        while True:
            self._issue()
            if not self._order:
                self._source.raise_error()
                if self._source.ended():
                    return None
            else:
                unit = self._ready()
                if unit is not None:
                    return self._deliver(unit)
                self._raise_death(waited_since)
            waited_since = waited_since or time.monotonic()
            self._wait()

    def close(self) -> None:
        """Forget what is still being done."""
        self._source.close()
        self.stats()
        self._over = True
        if not self._pool.usable:
            return
        self._pool.abandon(list(self._order))
        self._order.clear()
        self._pool.slots.trim(self._pool.options.workers + _SPARE_SLOTS)

    def _ready(self) -> Unit | None:
        """The unit to hand on, if it is done."""
        if self._pool.options.ordered:
            return self._order[0] if self._order[0].done else None
        return next((unit for unit in self._order if unit.done), None)

    def _raise_death(self, waited_since: float | None) -> None:
        """Raise the death of a worker, if what comes before is not done soon."""
        if waited_since is None or time.monotonic() - waited_since < _DEATH_PATIENCE_S:
            return
        for unit in self._order:
            if isinstance(unit.error, WorkerError) and unit.finished == 0:
                self._deliver(unit)

    def _deliver(self, unit: Unit) -> list[Datapoint]:
        if unit.error is not None and unit.finished == 0:
            error = unit.error
            unit.reset()  # should anybody ask again, it is done again
            self._again.append(unit)
            raise error
        rows = self._pool.take(unit, copy=self._must_copy())
        self.taken = unit.work
        if unit.error is None:
            self._order.remove(unit)
            self._outstanding -= unit.count
            self._source.observe(unit.count, unit.seconds, unit.nbytes)
        else:
            # Its good datapoints are handed on; its error comes next.
            self._outstanding -= unit.finished
            unit.advance(self._source.group)
        self._issue()
        self._left = time.monotonic()
        return rows

    def _issue(self) -> None:
        pool = self._pool
        while True:
            if pool.lost or not pool.members:
                pool.hire()  # before one is chosen: it may find that one has ended
            member = pool.ready_member()
            unit = None if member is None else self._next_unit()
            if member is None or unit is None:
                return
            pool.submit(unit, member)

    def _next_unit(self) -> Unit | None:
        if self._again:
            return self._again.popleft()
        if self._pool.lost:
            return self._pool.lost.popleft()
        if not self._more():
            return None
        work = self._source.next_work()
        if work is None:
            return None
        unit = Unit(self._pool.next_seq(), *work)
        self._order.append(unit)
        self._outstanding += unit.count
        return unit

    def _more(self) -> bool:
        options = self._pool.options
        if len(self._order) < options.workers:
            return True
        if options.prefetch is None:
            return len(self._order) < 2 * options.workers + 2
        return self._outstanding < options.prefetch

    def _wait(self) -> None:
        pool = self._pool
        begin = time.monotonic()
        pool.wait(min(_POLL_S, pool.options.stall_s / 2))
        now = time.monotonic()
        pool.stats.waited_s += now - begin
        if now - self._checked > _POLL_S:
            self._checked = now
            pool.check()
            self._report_stalls(now)

    def _report_stalls(self, now: float) -> None:
        for member in self._pool.members:
            # How long a worker takes to start is not the map's fault.
            limit = max(self._pool.options.stall_s, 0.0 if member.ready else _START_S)
            at_work = now - max(member.since, member.reported)
            if member.queue and at_work >= limit:
                member.reported = now
                log.warning(
                    "%s: a worker has been at %s for %.0f s. Its stacks:\n%s",
                    self._pipeline,
                    self._job.place_of(member.queue[0].work),
                    now - member.since,
                    member.stacks(),
                )

    def _must_copy(self) -> bool:
        if self._pool.options.copy:
            return True
        if not self._pool.keeps_too_much():
            return False
        self._pool.stats.copies += 1
        if not self._pool.told:
            self._pool.told = True
            count, nbytes = self._pool.slots.lent
            log.warning(
                "%s: the consumer keeps %d results (%.0f MB) in the memory that workers write to; "
                "it is given copies of further ones.",
                self._pipeline,
                count,
                nbytes / 2**20,
            )
        return True

    def _count_full(self) -> None:
        """Between two calls there was nothing to do if all that was issued is done."""
        if self._order and all(unit.done for unit in self._order):
            self._pool.stats.full_s += time.monotonic() - self._left

    def stats(self) -> Stats:
        """What the pool has done in this pass so far."""
        stats = self._stats
        if not self._over:
            stats.busy_s = [member.busy_s for member in self._pool.members]
            stats.elapsed_s = time.monotonic() - self._begun
        return stats
