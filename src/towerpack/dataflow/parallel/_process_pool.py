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

# Number of worker deaths after which a unit is considered the cause. A signal from outside may hit
# the same unit again by chance.
_MOST_CRASHES = 2
_MOST_KILLS = 5

_EXIT_S = 1.0
_STACKS_S = 0.2
_MOST_OUTPUT = 20_000
_SUGGESTIONS = {
    "SIGKILL": "use fewer workers, smaller batches or a smaller num_prefetch, because memory "
    "probably ran out",
    "SIGBUS": "check the disk, and that no mapped file was truncated",
}


class ProcessMember(Member):
    """Worker process: a fork if `job` is passed, otherwise a fresh interpreter."""

    def __init__(self, slots_fd: int, job: Job | None) -> None:
        super().__init__()
        with contextlib.ExitStack() as resources, contextlib.ExitStack() as handed_over:
            self.channel, other_end = map(resources.enter_context, Pipe())
            handed_over.callback(other_end.close)
            self._report = resources.enter_context(open(memory_file("words"), "rb", 0))
            # One pipe for each worker: the kernel signals only one reader of a shared pipe.
            read_fd, write_fd = os.pipe()
            handed_over.callback(os.close, read_fd)
            death_pipe = resources.enter_context(open(write_fd, "wb", 0))
            fds = (other_end.fileno(), slots_fd, read_fd, self._report.fileno())
            self.process: Process = start_fresh(fds) if job is None else start_fork(fds, job)
            self.close = resources.pop_all().close
        self.close_death_pipe = death_pipe.close  # for forks of this process
        self.job = job  # the job that the worker has received
        self.started = False
        self._report_read = 0

    def send(self, *message: Any, fds: Sequence[int] = ()) -> None:
        with contextlib.suppress(OSError):  # the worker died, which `wait` notices
            send(self.channel, *message, fds=fds)

    def stacks(self) -> str:
        if not self.started:  # the signal would end it
            return "it has not started yet"
        os.kill(self.process.pid, signal.SIGUSR1)
        time.sleep(_STACKS_S)
        return self.report()

    def report(self) -> str:
        """Return stack traces or a crash report that the worker has written since the last call."""
        text = os.pread(self._report.fileno(), _MOST_OUTPUT, self._report_read)
        self._report_read += len(text)
        return text.decode(errors="replace")

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
                self._end_members()  # new workers inherit the job, so it need not be pickled
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
                member.send("job", self._pickled_job.pieces, fds=self._pickled_job.fds)

    def wait(self, timeout_s: float) -> None:
        while ready := self._selector.select(timeout_s):
            timeout_s = 0.0
            for key, _ in ready:
                if key.data is None:
                    self._bell[0].recv(4096)
                else:
                    self._process_message(key.data)

    def wake(self) -> None:
        with contextlib.suppress(OSError):  # the pool was closed
            self._bell[1].send(b"\0")

    def check(self) -> None:
        for member in list(self.members):
            if member.process.poll() is not None:
                while member in self.members and member.channel.poll():
                    self._process_message(member)
                self._remove(member)

    def _process_message(self, member: ProcessMember) -> None:
        try:
            kind, *fields, fds = receive(member.channel)
        except (EOFError, OSError):
            self._remove(member)
            return
        if kind == "ready":
            member.started, member.since = True, time.monotonic()
            return
        extents, failure, count, needed, seconds = fields
        unit = member.finished()
        if fds:
            self.release(unit)
            unit.slot = self.slots.adopt(*fds)
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
        except Exception as error:  # noqa: BLE001  raised in order, like all errors of units
            if not isinstance(error, TowerpackError):  # out of memory
                fix = 'convert the datapoint in the source, or use backend="thread"'
                error = error_from(error, "A datapoint cannot be sent to a worker", fix=fix)
            unit.finish(None, 0, error)
            return
        member.assign(unit)
        slot = unit.slot.offset, unit.slot.nbytes
        cast("ProcessMember", member).send("unit", *slot, unit.work, sent)

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
                member.send("cancel")

    def _remove(self, member: ProcessMember) -> None:
        """Remove a worker that has ended. Retry its units of work, or let the first one fail."""
        if member not in self.members:
            return
        self._selector.unregister(member.channel)
        self.members.remove(member)
        member.end(_EXIT_S)
        first = next((unit for unit in member.queue if not unit.abandoned), None)
        error = _death_error(member, first)
        member.close()
        if first is None:
            log.warning("%s It was idle and is replaced.", error.what)
        for unit in member.queue:
            if unit.abandoned:
                self.release(unit)
            elif unit is first and not self._may_restart(unit, member):
                unit.finish(None, 0, error)
            else:
                self.again.append(unit)
        member.queue.clear()

    def _may_restart(self, unit: Unit, member: ProcessMember) -> bool:
        unit.deaths += member.started  # not the cause if the worker had not started
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
            member.channel.close()  # idle workers end
        end = time.monotonic() + _EXIT_S
        for member in members:
            if member.queue:  # a busy worker notices the closed channel too late
                member.process.kill()
            member.end(max(0.01, end - time.monotonic()))
            member.close()
            for unit in member.queue:
                self.release(unit)


def _death_error(member: ProcessMember, unit: Unit | None) -> WorkerError:
    code = member.process.returncode or 0
    if code < 0:
        name = signal.Signals(-code).name
        end, fix = f"was killed by {name}", _SUGGESTIONS.get(name, "read its output on stderr")
    else:
        end, fix = f"ended with status {code}", "read its output on stderr"
    work = "" if unit is None else f" at {place_of(unit.work)}"
    report = member.report().strip()
    details = f"Its last output:\n{report}" if report else None
    pid = member.process.pid
    return WorkerError(f"A worker (process {pid}) {end}{work}.", fix=fix, details=details)


# All open pools. With weak references, a garbage collection could close the sockets too early.
_POOLS: set[ProcessPool] = set()


@atexit.register
def close_all() -> None:
    for pool in list(_POOLS):
        pool.close()


def _close_death_pipes() -> None:
    # Workers must notice the end of their parent although a fork still lives.
    for pool in _POOLS:
        for member in pool.members:
            member.close_death_pipe()


os.register_at_fork(after_in_child=_close_death_pipes)
