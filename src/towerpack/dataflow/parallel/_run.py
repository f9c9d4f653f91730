"""One pass with a crew: work is issued ahead, and its results are taken in order."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from towerpack._core.errors import WorkerError
from towerpack._core.logs import get_logger
from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow.parallel._crew import Crew, Stats
from towerpack.dataflow.parallel._job import Job, Work
from towerpack.dataflow.parallel._unit import Part, Unit

log = get_logger(__name__)

_POLL_S = 0.5
_START_S = 30.0
# A worker's death is raised in its turn, unless what comes before it takes longer.
_DEATH_PATIENCE_S = 0.5
_SPARE_SLOTS = 4
# A unit costs some 50 µs besides its work; results that take long or are large go alone.
_WORTHWHILE_S = 8e-3
_LARGE_BYTES = 1 << 20
_MOST = 1 << 16


@dataclass
class Piece:
    """Work to be done.

    Attributes:
        work: For the job.
        count: Datapoints that it gives, or is done on.
        inputs: What it is done on, where workers cannot read it themselves.
    """

    work: Work
    count: int
    inputs: Any = None


class WorkSource(ABC):
    """What is to be done, piece by piece, in order."""

    @abstractmethod
    def next_piece(self) -> Piece | None:
        """The next one; `None` if there is none, or none yet."""

    @abstractmethod
    def ended(self) -> bool:
        """Whether there will be no more."""

    @abstractmethod
    def rest(self, unit: Unit) -> Piece:
        """What of a unit is left, after the datapoints that were finished."""

    @abstractmethod
    def observe(self, count: int, seconds: float, nbytes: int) -> None:
        """Learn what a piece cost."""

    def raise_error(self) -> None:
        """Raise what keeps further pieces from coming.

        Raises:
            Exception: Any. The next call to `next_piece` tries again.
        """
        return

    def close(self) -> None:
        """Nobody asks for pieces any more."""
        return


class Adaptive:
    """How many datapoints make a unit: so many that the work outweighs the handing over.

    Args:
        size: To begin with.
        most: Never more.
    """

    def __init__(self, size: int, most: int) -> None:
        self.size = min(size, most)
        self._most = most

    def observe(self, count: int, seconds: float, nbytes: int) -> None:
        """Learn what a unit cost."""
        if count == self.size and seconds < _WORTHWHILE_S / 2 and nbytes < _LARGE_BYTES / 2:
            self.size = min(2 * self.size, self._most)


def most_at_a_time(left: int | None, workers: int) -> int:
    """How much of what is left may go into a unit, so that all have work until the end."""
    return _MOST if left is None else max(1, min(_MOST, left // (4 * workers)))


class PlanWork(Adaptive, WorkSource):
    """Runs of positions of a plan.

    Args:
        epoch: The pass.
        start: The first position.
        size: Of the pass; `None` is infinite.
        chunk: How many positions to begin with.
        workers: Who shares the pass.
    """

    def __init__(self, epoch: int, start: int, size: int | None, chunk: int, workers: int) -> None:
        left = None if size is None else size - start
        Adaptive.__init__(self, chunk, most_at_a_time(left, workers))
        self._epoch = epoch
        self._next = start
        self._end = sys.maxsize if size is None else size

    def next_piece(self) -> Piece | None:
        start = self._next
        stop = min(start + self.size, self._end)
        if stop <= start:
            return None
        self._next = stop
        return Piece((self._epoch, start, stop), stop - start)

    def ended(self) -> bool:
        return self._next >= self._end

    def rest(self, unit: Unit) -> Piece:
        epoch, start, stop = unit.work
        return Piece((epoch, start + unit.finished, stop), unit.count - unit.finished)


class Run:
    """The engine of one pass.

    Args:
        crew: Its workers; they are this run's until `close`.
        job: What they do.
        key: Equal for equal jobs, which are sent only once.
        source: Makes the pieces of work for it.
        pipeline: How messages name it.
    """

    def __init__(
        self,
        crew: Crew,
        job: Job,
        key: Any,
        source: Callable[[Crew], WorkSource],
        pipeline: str,
    ) -> None:
        self._crew = crew
        self._job = job
        self._pipeline = pipeline
        self._order: deque[Unit] = deque()
        self._again: deque[Unit] = deque()
        self._parts: deque[Part] = deque()
        self._outstanding = 0
        self._checked = 0.0
        self.taken: Work = None
        """The work whose datapoints were taken last."""
        self._left = time.monotonic()
        self._begun = self._left
        crew.begin(key, job)
        self._stats = crew.stats
        self._over = False
        self._source = source(crew)

    def take(self) -> list[Datapoint] | None:
        """The datapoints of the next unit; `None` at the end.

        Raises:
            Exception: What a datapoint raised, after those before it were taken. The next call
                tries it again.
        """
        self._count_full()
        self._crew.wait(0.0)
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
        if not self._crew.usable:
            return
        self._crew.abandon(list(self._order))
        self._order.clear()
        self._parts.clear()
        self._crew.slots.trim(self._crew.options.workers + _SPARE_SLOTS)

    def _ready(self) -> Unit | None:
        """The unit to hand on, if it is done."""
        if self._crew.options.ordered:
            return self._order[0] if self._order[0].done else None
        return next((unit for unit in self._order if unit.done), None)

    def _raise_death(self, waited_since: float | None) -> None:
        """Raise the death of a worker, if what comes before is not done soon."""
        if waited_since is None or time.monotonic() - waited_since < _DEATH_PATIENCE_S:
            return
        for unit in self._order:
            if isinstance(unit.error, WorkerError) and unit.finished == 0:
                self._deliver(unit)
            for part in [] if unit.division is None else unit.division.parts:
                if isinstance(part.error, WorkerError):
                    error, part.error = part.error, None  # one worker then makes all of it
                    raise error

    def _deliver(self, unit: Unit) -> list[Datapoint]:
        if unit.error is not None and unit.finished == 0:
            error = unit.error
            self._retry(unit)
            raise error
        rows = self._crew.take(unit, copy=self._must_copy())
        self.taken = unit.work
        if unit.error is None:
            self._order.remove(unit)
            self._outstanding -= unit.count
            self._source.observe(unit.count, unit.seconds, unit.nbytes)
            if self._job.rows_of(unit.work):
                self._crew.splitting.learn(rows[0], unit.seconds)
        else:
            self._advance(unit)
        self._issue()
        self._left = time.monotonic()
        return rows

    def _advance(self, unit: Unit) -> None:
        """Its good datapoints are handed on; its error comes next."""
        rest = self._source.rest(unit)
        self._outstanding -= unit.finished
        unit.work, unit.count, unit.inputs = rest.work, rest.count, rest.inputs
        unit.finish(None, 0, unit.error)

    def _retry(self, unit: Unit) -> None:
        """It raised: should anybody ask again, it is done again."""
        unit.reset()
        unit.deaths = 0
        self._again.append(unit)

    def _issue(self) -> None:
        crew = self._crew
        while True:
            if crew.lost or not crew.members:
                crew.hire()  # before one is chosen: it may find that one has ended
            member = crew.ready_member()
            unit = None if member is None else self._next_unit()
            if member is None or unit is None:
                return
            crew.submit(unit, crew.member_for(unit, member))

    def _next_unit(self) -> Unit | None:
        if self._again:
            return self._again.popleft()
        if self._crew.lost:
            return self._crew.lost.popleft()
        if self._parts:
            return self._parts.popleft()
        if not self._more():
            return None
        piece = self._source.next_piece()
        if piece is None:
            return None
        unit = Unit(self._crew.next_seq(), piece.work, piece.count, piece.inputs)
        self._order.append(unit)
        self._outstanding += unit.count
        self._parts.extend(self._divided(unit))
        return self._parts.popleft() if self._parts else unit

    def _divided(self, unit: Unit) -> list[Part]:
        """The parts of a unit that several workers are to do."""
        layout = self._crew.splitting.layout
        if layout is None or self._job.rows_of(unit.work) != layout.rows:
            return []
        return self._crew.divide(unit, layout, self._crew.splitting.parts)

    def _more(self) -> bool:
        options = self._crew.options
        if len(self._order) < options.workers:
            return True
        if options.prefetch is None:
            # Batches that all work on together need fewer of them under way.
            split = self._crew.splitting.layout is not None
            return len(self._order) < (1 if split else 2) * options.workers + 2
        return self._outstanding < options.prefetch

    def _wait(self) -> None:
        crew = self._crew
        begin = time.monotonic()
        crew.wait(min(_POLL_S, crew.options.stall_s / 2))
        now = time.monotonic()
        crew.stats.waited_s += now - begin
        if now - self._checked > _POLL_S:
            self._checked = now
            crew.check()
            self._report_stalls(now)

    def _report_stalls(self, now: float) -> None:
        for member in self._crew.members:
            # How long a worker takes to start is not the map's fault.
            limit = max(self._crew.options.stall_s, 0.0 if member.ready else _START_S)
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
        if self._crew.options.copy:
            return True
        if not self._crew.keeps_too_much():
            return False
        self._crew.stats.copies += 1
        if not self._crew.told:
            self._crew.told = True
            count, nbytes = self._crew.slots.lent
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
            self._crew.stats.full_s += time.monotonic() - self._left

    def stats(self) -> Stats:
        """What the crew has done in this pass so far."""
        stats = self._stats
        if not self._over:
            stats.busy_s = [member.busy_s for member in self._crew.members]
            stats.elapsed_s = time.monotonic() - self._begun
        return stats
