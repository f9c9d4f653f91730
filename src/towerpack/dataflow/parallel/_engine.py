from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from towerpack._core.errors import DataFlowError, WorkerError
from towerpack._core.logs import get_logger
from towerpack.dataflow.datapoints import Datapoint
from towerpack.dataflow.parallel._idle_pools import IdlePools
from towerpack.dataflow.parallel._options import Options
from towerpack.dataflow.parallel._pickles_and_errors import error_from
from towerpack.dataflow.parallel._pool import QUEUED
from towerpack.dataflow.parallel._work_units import Job, Unit, Work, WorkSource, place_of

log = get_logger(__name__)

_POLL_S = 0.5
_START_S = 30.0
# The death of a worker is raised in order, unless earlier work takes longer than this.
_DEATH_PATIENCE_S = 0.5
_SPARE_SLOTS = 4


class Engine:
    closed = True  # closed, interrupted, or not started

    def __init__(
        self,
        pools: IdlePools,
        options: Options,
        job: Job,
        key: Any,
        source: WorkSource,
        pipeline: str,
    ) -> None:
        self._pools = pools
        self._source = source
        self._pipeline = pipeline
        self._order: deque[Unit] = deque()
        self._outstanding = 0
        self._checked = 0.0
        self.taken: Work = (0, 0, 0)
        """Work whose datapoints `take` returned last."""
        self._pool = pools.take(options)
        try:
            self._pool.begin(key, job)
            source.begin(options, self._pool.wake)
        except BaseException:  # a worker may have received a part of it
            self._pool.close()
            raise
        self.closed = False

    def take(self) -> list[Datapoint] | None:
        """Return the datapoints of the next unit of work, or `None` at the end of the pass."""
        if self.closed:
            raise DataFlowError(
                "This pass cannot go on, because it was closed or interrupted.",
                fix="continue with ds.iterate(state=iterator.state())",
            )
        try:
            return self._take()
        except BaseException as error:
            if not isinstance(error, Exception):  # Ctrl-C may have interrupted a message
                self._pool.close()
                self.close()
            raise

    def close(self) -> None:
        """Abandon running work and return the pool. May be called several times."""
        if self.closed:
            return
        self.closed = True
        self._source.close()
        if self._pool.usable:
            self._pool.abandon(self._order)
            self._order.clear()
            self._pool.slots.trim(self._pool.options.workers + _SPARE_SLOTS)
        self._pools.put_back(self._pool)

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not finalizing():
            self.close()

    def _take(self) -> list[Datapoint] | None:
        self._pool.wait(0.0)
        waited_since: float | None = None
        while True:
            self._issue()
            if not self._order:
                self._source.raise_error()
                if self._source.is_over():
                    return None
            else:
                unit = self._ready()
                if unit is not None:
                    return self._deliver(unit)
                self._raise_death(waited_since)
            waited_since = waited_since or time.monotonic()
            self._wait()

    def _ready(self) -> Unit | None:
        if self._pool.options.ordered:
            return self._order[0] if self._order[0].done else None
        return next((unit for unit in self._order if unit.done), None)

    def _raise_death(self, waited_since: float | None) -> None:
        if waited_since is None or time.monotonic() - waited_since < _DEATH_PATIENCE_S:
            return
        for unit in self._order:
            if isinstance(unit.error, WorkerError) and unit.finished == 0:
                self._deliver(unit)

    def _deliver(self, unit: Unit) -> list[Datapoint]:
        rows: list[Datapoint] = []
        if unit.finished:
            try:
                rows = self._pool.take(unit)
            except Exception as error:  # noqa: BLE001  user-defined classes may not unpickle
                what = f"The result of a worker for {place_of(unit.work)} cannot be unpickled"
                fix = (
                    "return arrays, numbers and strings, or tuples, lists and dicts of such values"
                )
                unit.finish(None, 0, error_from(error, what, fix=fix))
        if unit.error is not None and unit.finished == 0:
            error = unit.error
            unit.reset()  # to be retried
            self._pool.again.append(unit)
            raise error
        self.taken = unit.work
        if unit.error is None:
            self._order.remove(unit)
            self._outstanding -= unit.count
            self._source.observe(unit)
        else:
            # Its good datapoints are yielded first, then its error is raised.
            self._outstanding -= unit.finished
            unit.advance(self._source.group)
        self._issue()
        return rows

    def _issue(self) -> None:
        pool = self._pool
        while True:
            if pool.again or not pool.members:
                pool.start_members()  # before one is chosen, since a worker may have ended
            member = min(pool.members, key=lambda member: len(member.queue))
            unit = self._next_unit() if len(member.queue) < QUEUED else None
            if unit is None:
                return
            pool.submit(unit, member)

    def _next_unit(self) -> Unit | None:
        if self._pool.again:
            return self._pool.again.popleft()
        work = self._source.next_work() if self._has_room() else None
        if work is None:
            return None
        unit = Unit(*work)
        self._order.append(unit)
        self._outstanding += unit.count
        return unit

    def _has_room(self) -> bool:
        options = self._pool.options
        if len(self._order) < options.workers:
            return True
        if options.prefetch is None:
            return len(self._order) < 2 * options.workers + 2
        return self._outstanding < options.prefetch

    def _wait(self) -> None:
        pool = self._pool
        pool.wait(min(_POLL_S, pool.options.stall_s / 2))
        now = time.monotonic()
        if now - self._checked <= _POLL_S:
            return
        self._checked = now
        pool.check()
        for member in pool.members:
            # The start of a worker may take longer than `stall_s`.
            limit = max(pool.options.stall_s, 0.0 if member.started else _START_S)
            if member.queue and now - max(member.since, member.reported) >= limit:
                member.reported = now
                what = self._pipeline, place_of(member.queue[0].work), now - member.since
                message = "%s: a worker has been working on %s for %.0f s. Its stacks:\n%s"
                log.warning(message, *what, member.stacks())
