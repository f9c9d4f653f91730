"""Workers that are processes: fresh interpreters, or forks on request."""

from __future__ import annotations

import atexit
import contextlib
import os
import selectors
import signal
import socket
import subprocess
import time
from io import RawIOBase
from typing import Any, cast

from towerpack._core.errors import DataFlowError, TowerpackError, WorkerError
from towerpack._core.logs import get_logger
from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow._memory import Arena
from towerpack.dataflow.parallel._image import JobImage
from towerpack.dataflow.parallel._launch import Process, safe_to_fork, start_fork, start_fresh
from towerpack.dataflow.parallel._memory import Slot, SlotPool, memory_file
from towerpack.dataflow.parallel._messages import Channel, Message, restore_failure
from towerpack.dataflow.parallel._packing import WORTH_LENDING, Extents, Packed, unbundle, unpack
from towerpack.dataflow.parallel._pool import Member, Options, Pool
from towerpack.dataflow.parallel._reader import pickled
from towerpack.dataflow.parallel._work import Job, Unit, place_of

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
    "SIGSEGV": "a fault in compiled code that the pipeline calls",
    "SIGBUS": "a mapped file that shrank, or a disk that failed",
    "SIGABRT": "compiled code gave up; see what it wrote to stderr",
}


class ProcessMember(Member):
    """A worker process.

    Args:
        number: Its name.
        channel: To it.
        process: Its handle.
        words: The file for its last words.
        life: The writing end of its pipe: it is killed when that is closed.
    """

    def __init__(
        self, number: int, channel: Channel, process: Process, words: RawIOBase, life: RawIOBase
    ) -> None:
        super().__init__(number)
        self.channel = channel
        self.process = process
        self.knows = 0
        """The number of the last job that was sent to it."""
        self.ready = False
        self.let_live = life.close  # in a process that is not its parent
        self._words = words
        self._words_read = 0

    def stacks(self) -> str:
        if not self.ready:  # the signal would end it
            return "it has not started yet"
        os.kill(self.process.pid, signal.SIGUSR1)
        end = time.monotonic() + _STACKS_S
        words = ""
        while time.monotonic() < end:
            time.sleep(0.02)
            words += self.words()
        return words

    def words(self) -> str:
        """What it has written about its end, or about its stacks, since the last time."""
        words = os.pread(self._words.fileno(), _MOST_WORDS, self._words_read)
        self._words_read += len(words)
        return words.decode(errors="replace")

    def end(self, timeout_s: float) -> None:
        """Wait for the process to end, and kill it if it does not."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout_s)
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """Close what there is between us. Were it not over, that would end it at once."""
        self.channel.close()
        self._words.close()
        self.let_live()


class ProcessPool(Pool):
    """Worker processes."""

    members: list[ProcessMember]

    def __init__(self, options: Options) -> None:
        super().__init__(options, SlotPool(shared=True))
        self._owner = os.getpid()
        self._selector = selectors.DefaultSelector()
        self._bell = socket.socketpair()
        self._bell[0].setblocking(False)
        self._selector.register(self._bell[0], selectors.EVENT_READ, None)
        self._image: JobImage | None = None
        self._count = 0
        _POOLS.add(self)

    @property
    def usable(self) -> bool:
        """Whether it is open, and of this process and not of one that forked it."""
        return not self._closed and self._owner == os.getpid()

    def prepare(self, job: Job) -> None:
        if self.options.start == "fork":
            with safe_to_fork():
                self._dismiss()  # new ones inherit the job: it need not even pickle
        else:
            self._image = JobImage(job)

    def hire(self) -> None:
        self.check()
        for member in self.members:
            self._send_job(member)
        while len(self.members) < self.options.workers:
            self.members.append(self._start())
            self._send_job(self.members[-1])

    def _send_job(self, member: ProcessMember) -> None:
        image = self._image
        if image is None or member.knows == self.job_number:
            return
        member.knows = self.job_number
        with contextlib.suppress(OSError):  # it died: that shows when it is waited for
            message = ("job", self.job_number, image.pieces, len(image.fds))
            member.channel.send(message, tuple(image.fds))

    def _start(self) -> ProcessMember:
        with contextlib.ExitStack() as failed, contextlib.ExitStack() as handed_over:
            ours, theirs = socket.socketpair()
            failed.enter_context(ours)
            handed_over.enter_context(theirs)
            words = failed.enter_context(open(memory_file("words"), "rb", 0))
            # A pipe for each: of one that they shared, the kernel would tell only one of them.
            lives_fd, life_fd = os.pipe()
            handed_over.callback(os.close, lives_fd)
            life = failed.enter_context(open(life_fd, "wb", 0))
            fds = (theirs.fileno(), self.slots.fd, lives_fd, words.fileno())
            if self.options.start == "fresh" or self.job is None:
                process = start_fresh(fds)
            else:
                process = start_fork(fds, self.job_number, self.job)
            failed.pop_all()
        self._count += 1
        member = ProcessMember(self._count, Channel(ours), process, words, life)
        self._selector.register(member.channel, selectors.EVENT_READ, member)
        return member

    def wait(self, timeout_s: float) -> None:
        for key, _ in self._selector.select(timeout_s):
            if key.data is None:
                self._bell[0].recv(4096)
            else:
                self._listen(key.data)

    def wake(self) -> None:
        with contextlib.suppress(OSError):  # closed meanwhile
            self._bell[1].send(b"\0")

    def check(self) -> None:
        """Find workers that ended though something keeps their sockets open."""
        for member in list(self.members):
            if member.process.poll() is not None:
                self._listen(member)
                self._bury(member)

    def _listen(self, member: ProcessMember) -> None:
        try:
            while messages := member.channel.poll():
                for message in messages:
                    self._heard(member, message)
        except (EOFError, OSError):
            self._bury(member)

    def _heard(self, member: ProcessMember, message: Message) -> None:
        if message[0] == "ready":
            member.ready, member.since = True, time.monotonic()
            return
        if message[0] == "grow":
            self._grow(member, message[1], message[2])
            return
        _, seq, extents, failure, count, needed, seconds = message
        unit = member.finished(seq)
        if unit is None:
            return
        self.release_outgrown(unit)
        if unit.error is not None:  # there was no memory for it
            unit.finish(None, 0, unit.error)
        else:
            error = None if failure is None else restore_failure(failure)
            unit.finish(None if extents is None else Extents(*extents), count, error)
        if unit.abandoned:
            self.release(unit)
            return
        unit.seconds, unit.nbytes = seconds, needed

    def _grow(self, member: ProcessMember, seq: int, nbytes: int) -> None:
        unit = member.queue[0]
        slot = None
        if not unit.abandoned:
            self.release_outgrown(unit)
            try:
                # Some more, so that units which differ a little fit at once.
                slot = self.take_slot(nbytes + nbytes // 8)
            except TowerpackError as error:
                unit.error = error
            else:
                # What the worker has made so far lies in the old one.
                unit.outgrown, unit.slot = unit.slot, slot
        member.channel.send(("grown", seq, None if slot is None else slot.place))

    def take_slot(self, nbytes: int = 0) -> Slot:
        """A slot, after telling workers which are gone."""
        slot = self.slots.take(nbytes)
        if self.slots.dropped:
            for member in self.members:
                with contextlib.suppress(OSError):
                    member.channel.send(("forget", self.slots.dropped))
            self.slots.dropped.clear()
        return slot

    def submit(self, unit: Unit, member: Member) -> None:
        try:
            slot = self._send_inputs(unit)
        except TowerpackError as error:  # no memory: raised in its turn, as all that befalls a unit
            unit.finish(None, 0, error)
            return
        except Exception as error:  # noqa: BLE001
            unit.finish(None, 0, _not_sent(error))
            return
        member.assign(unit)
        with contextlib.suppress(OSError):  # it died: that shows when it is waited for
            message = ("unit", unit.seq, self.job_number, slot.place, unit.work, unit.sent)
            cast("ProcessMember", member).channel.send(message)

    def _send_inputs(self, unit: Unit) -> Slot:
        packed = None if unit.inputs is None else Packed(unit.inputs)
        needed = 0 if packed is None else packed.most
        if unit.slot is None or unit.slot.nbytes < needed:
            self.release(unit)
            unit.slot = self.take_slot(needed)
        if packed is not None:
            unit.sent = packed.put(Arena(unit.slot.anchor()))
        return unit.slot

    def take(self, unit: Unit, *, copy: bool) -> list[Datapoint]:
        slot, extents = unit.slot, unit.value
        unit.slot = None
        if slot is None or extents is None:
            if slot is not None:
                self.slots.give_back(slot)
            return []
        if extents.bulk >= WORTH_LENDING and not copy:
            return unbundle(unpack(extents, self.slots.lend(slot), copy=False))
        value = unbundle(unpack(extents, slot.anchor(), copy=True))
        self.slots.give_back(slot)
        return value

    def own_copy(self, value: Any) -> Any:
        return pickled(value)

    def cancel(self, seq: int) -> None:
        for member in self.members:
            if member.queue:
                with contextlib.suppress(OSError):
                    member.channel.send(("cancel", seq))

    def _bury(self, member: ProcessMember) -> None:
        """A worker has ended: its units are issued again, or the first one becomes an error."""
        if member not in self.members:
            return
        self._selector.unregister(member.channel)
        self.members.remove(member)
        member.end(_EXIT_S)
        first = next((unit for unit in member.queue if not unit.abandoned), None)
        error = _obituary(member, first)
        member.close()
        if first is None:
            log.warning("%s It had nothing to do, and is replaced.", error.what)
        for unit in member.queue:
            self.release_outgrown(unit)
            if unit.abandoned:
                self.release(unit)
            elif unit is first and not self._may_restart(unit, member):
                unit.finish(None, 0, error)
            else:
                self.lost.append(unit)
        member.queue.clear()

    def _may_restart(self, unit: Unit, member: ProcessMember) -> bool:
        unit.deaths += member.ready  # one that had not started did not die of it
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
        self._dismiss()
        self._selector.close()
        for end in self._bell:
            end.close()
        self.slots.close()
        self._image = None
        _POOLS.discard(self)

    def _dismiss(self) -> None:
        """End all workers: they are told, waited for, and killed."""
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


def _obituary(member: ProcessMember, unit: Unit | None) -> WorkerError:
    """The error for a worker that ended, at a unit if it was at one."""
    code = member.process.returncode or 0
    if code < 0:
        name = signal.Signals(-code).name
        how, fix = f"was killed by {name}", _SUGGESTIONS.get(name, "see what sent the signal")
    else:
        how, fix = f"ended with status {code}", "see what it wrote to stderr"
    where = "" if unit is None else f" at {place_of(unit.work)}"
    words = member.words().strip()
    return WorkerError(
        f"A worker (process {member.process.pid}) {how}{where}.",
        fix=fix,
        details=f"Its last words:\n{words}" if words else None,
    )


def _not_sent(error: Exception) -> DataFlowError:
    failure = DataFlowError(
        f"A datapoint cannot be sent to a worker: {type(error).__name__}: {error}",
        expected="what pickles",
        fix='convert it in the source, or backend="thread"',
    )
    failure.__cause__ = error
    return failure


# All that are open. Not weak: what is found in garbage has its sockets closed before anybody could
# say good-bye through them.
_POOLS: set[ProcessPool] = set()


@atexit.register
def close_all() -> None:
    """End all workers of this process."""
    for pool in list(_POOLS):
        pool.close()


def _let_live() -> None:
    """Let go, in a fork, of the pipes by which workers notice the end of their parent."""
    for pool in _POOLS:
        for member in pool.members:
            member.let_live()


os.register_at_fork(after_in_child=_let_live)
