"""Workers that are processes: fresh interpreters, or forks on request."""

from __future__ import annotations

import atexit
import contextlib
import os
import selectors
import signal
import socket
import time
from collections.abc import Sequence
from multiprocessing.connection import Pipe
from typing import Any, cast

from towerpack._core.errors import TowerpackError, WorkerError
from towerpack._core.logs import get_logger
from towerpack.dataflow._arena import Arena
from towerpack.dataflow.datapoints import Datapoint, to_rows
from towerpack.dataflow.parallel._options import Options
from towerpack.dataflow.parallel._pickled_job import PickledJob
from towerpack.dataflow.parallel._pickles_and_errors import error_from, restore_failure
from towerpack.dataflow.parallel._pool import Member, Pool
from towerpack.dataflow.parallel._slot_packing import WORTH_LENDING, pack, put, space_for, unpack
from towerpack.dataflow.parallel._slots import Slot, SlotPool, memory_file
from towerpack.dataflow.parallel._start_process import (
    Process,
    safe_to_fork,
    start_fork,
    start_fresh,
)
from towerpack.dataflow.parallel._work_units import Job, Unit, place_of
from towerpack.dataflow.parallel._worker import receive, send

log = get_logger(__name__)

# Of how many workers' deaths a unit is taken for the cause. A signal from outside may meet the same
# unit again by chance; the kernel, when memory runs out, more than by chance.
_MOST_CRASHES = 2
_MOST_KILLS = 5

_EXIT_S = 1.0
_STACKS_S = 0.2
_MOST_WORDS = 20_000
_SUGGESTIONS = {
    "SIGKILL": "probably out of memory: fewer workers, smaller batches or a smaller num_prefetch",
    "SIGBUS": "a mapped file that shrank, or a disk that failed",
}


class ProcessMember(Member):
    """A worker process: a fork that knows its job, or without one a fresh interpreter."""

    def __init__(self, slots_fd: int, job: Job | None) -> None:
        super().__init__()
        with contextlib.ExitStack() as kept, contextlib.ExitStack() as handed_over:
            self.channel, theirs = map(kept.enter_context, Pipe())
            handed_over.callback(theirs.close)
            self._words = kept.enter_context(open(memory_file("words"), "rb", 0))
            # A pipe for each: of one that they shared, the kernel would tell only one of them.
            lives_fd, life_fd = os.pipe()
            handed_over.callback(os.close, lives_fd)
            life = kept.enter_context(open(life_fd, "wb", 0))
            fds = (theirs.fileno(), slots_fd, lives_fd, self._words.fileno())
            self.process: Process = start_fresh(fds) if job is None else start_fork(fds, job)
            self.close = kept.pop_all().close
        self.let_go = life.close  # of what its life hangs on: for forks of this process
        self.job = job
        """The one that it knows."""
        self.started = False
        self._words_read = 0

    def tell(self, *message: Any, fds: Sequence[int] = ()) -> None:
        with contextlib.suppress(OSError):  # it died: that shows when it is waited for
            send(self.channel, *message, fds=fds)

    def stacks(self) -> str:
        if not self.started:  # the signal would end it
            return "it has not started yet"
        os.kill(self.process.pid, signal.SIGUSR1)
        time.sleep(_STACKS_S)
        return self.words()

    def words(self) -> str:
        """What it has written about its end, or about its stacks, since the last time."""
        words = os.pread(self._words.fileno(), _MOST_WORDS, self._words_read)
        self._words_read += len(words)
        return words.decode(errors="replace")

    def end(self, timeout_s: float) -> None:
        end = time.monotonic() + timeout_s
        while self.process.poll() is None:
            if time.monotonic() > end:
                self.process.kill()
            time.sleep(0.002)


class ProcessPool(Pool):
    members: list[ProcessMember]

    def __init__(self, options: Options) -> None:
        super().__init__(options, SlotPool(shared=True))
        self._owner = os.getpid()
        self._selector = selectors.DefaultSelector()
        self._bell = socket.socketpair()
        self._bell[0].setblocking(False)
        self._selector.register(self._bell[0], selectors.EVENT_READ, None)
        self._pickled_job: PickledJob | None = None
        _POOLS.add(self)

    @property
    def usable(self) -> bool:
        return not self._closed and self._owner == os.getpid()

    def prepare(self, job: Job) -> None:
        if self.options.start == "fork":
            with safe_to_fork():
                self._end_members()  # new ones inherit the job: it need not even pickle
        else:
            self._pickled_job = PickledJob(job)

    def start_members(self) -> None:
        self.check()
        while len(self.members) < self.options.workers:
            member = ProcessMember(self.slots.fd, self.job if self._pickled_job is None else None)
            self._selector.register(member.channel, selectors.EVENT_READ, member)
            self.members.append(member)
        for member in self.members:
            if member.job is not self.job and self._pickled_job is not None:
                member.job = self.job
                member.tell("job", self._pickled_job.pieces, fds=self._pickled_job.fds)

    def wait(self, timeout_s: float) -> None:
        while ready := self._selector.select(timeout_s):
            timeout_s = 0.0
            for key, _ in ready:
                if key.data is None:
                    self._bell[0].recv(4096)
                else:
                    self._listen(key.data)

    def wake(self) -> None:
        with contextlib.suppress(OSError):  # closed meanwhile
            self._bell[1].send(b"\0")

    def check(self) -> None:
        for member in list(self.members):
            if member.process.poll() is not None:
                while member in self.members and member.channel.poll():
                    self._listen(member)
                self._remove(member)

    def _listen(self, member: ProcessMember) -> None:
        try:
            kind, *fields, own = receive(member.channel)
        except (EOFError, OSError):
            self._remove(member)
            return
        if kind == "ready":
            member.started, member.since = True, time.monotonic()
            return
        extents, failure, count, needed, seconds = fields
        unit = member.finished()
        if own:
            self.release(unit)
            unit.slot = self.slots.adopt(*own)
        error = None if failure is None else restore_failure(failure)
        unit.finish(extents, count, error)
        if unit.abandoned:
            self.release(unit)
            return
        unit.seconds, unit.nbytes = seconds, needed

    def submit(self, unit: Unit, member: Member) -> None:
        try:
            parts = [] if unit.inputs is None else pack(unit.inputs)
            needed = space_for(parts)
            if unit.slot is None or unit.slot.nbytes < needed:
                self.release(unit)
                unit.slot = self.slots.take(needed)
            sent = put(parts, Arena(unit.slot.bytes()))
        except Exception as error:  # noqa: BLE001  raised in its turn, as all that befalls a unit
            if not isinstance(error, TowerpackError):  # which tells that there is no memory
                fix = 'convert it in the source, or backend="thread"'
                error = error_from(error, "A datapoint cannot be sent to a worker", fix=fix)
            unit.finish(None, 0, error)
            return
        member.assign(unit)
        where = unit.slot.offset, unit.slot.nbytes
        cast("ProcessMember", member).tell("unit", *where, unit.work, sent)

    def take(self, unit: Unit) -> list[Datapoint]:
        slot, extents = cast("Slot", unit.slot), unit.value
        unit.slot = None
        large = sum(size for _, size in extents[:-1]) >= WORTH_LENDING
        if large and not self.must_copy():
            return to_rows(unpack(extents, self.slots.lend(slot), copy=False))
        try:
            return to_rows(unpack(extents, slot.bytes(), copy=True))
        finally:
            self.slots.give_back(slot)

    def cancel(self) -> None:
        for member in self.members:
            if member.queue:
                member.tell("cancel")

    def _remove(self, member: ProcessMember) -> None:
        """A worker has ended: its units are issued again, or the first one becomes an error."""
        if member not in self.members:
            return
        self._selector.unregister(member.channel)
        self.members.remove(member)
        member.end(_EXIT_S)
        first = next((unit for unit in member.queue if not unit.abandoned), None)
        error = _death_error(member, first)
        member.close()
        if first is None:
            log.warning("%s It had nothing to do, and is replaced.", error.what)
        for unit in member.queue:
            if unit.abandoned:
                self.release(unit)
            elif unit is first and not self._may_restart(unit, member):
                unit.finish(None, 0, error)
            else:
                self.again.append(unit)
        member.queue.clear()

    def _may_restart(self, unit: Unit, member: ProcessMember) -> bool:
        unit.deaths += member.started  # one that had not started did not die of it
        outside = -(member.process.returncode or 0) in (signal.SIGKILL, signal.SIGTERM)
        most = _MOST_KILLS if outside else _MOST_CRASHES
        if self.options.on_worker_death == "raise" or unit.deaths >= most:
            return False
        self.restarts += 1
        return self.restarts <= self.options.max_restarts

    def close(self) -> None:
        if self._closed or self._owner != os.getpid():
            return
        self._closed = True
        self._end_members()
        self._selector.close()
        for end in self._bell:
            end.close()
        self.slots.close()
        self._pickled_job = None
        _POOLS.discard(self)

    def _end_members(self) -> None:
        members = self.members.copy()
        self.members.clear()
        for member in members:
            self._selector.unregister(member.channel)
            member.channel.close()  # an idle worker ends
        end = time.monotonic() + _EXIT_S
        for member in members:
            if member.queue:  # it is at work, and would not hear of the end until it is done
                member.process.kill()
            member.end(max(0.01, end - time.monotonic()))
            member.close()
            for unit in member.queue:
                self.release(unit)


def _death_error(member: ProcessMember, unit: Unit | None) -> WorkerError:
    code = member.process.returncode or 0
    if code < 0:
        name = signal.Signals(-code).name
        how, fix = f"was killed by {name}", _SUGGESTIONS.get(name, "see what it wrote to stderr")
    else:
        how, fix = f"ended with status {code}", "see what it wrote to stderr"
    where = "" if unit is None else f" at {place_of(unit.work)}"
    words = member.words().strip()
    details = f"It wrote last:\n{words}" if words else None
    what = f"A worker (process {member.process.pid}) {how}{where}."
    return WorkerError(what, fix=fix, details=details)


# All that are open. Not weak: garbage collection may close the sockets of a pool before workers
# have been told through them to end.
_POOLS: set[ProcessPool] = set()


@atexit.register
def close_all() -> None:
    for pool in list(_POOLS):
        pool.close()


def _let_go() -> None:
    """Let go, in a fork, of the pipes by which workers notice the end of their parent."""
    for pool in _POOLS:
        for member in pool.members:
            member.let_go()


os.register_at_fork(after_in_child=_let_go)
