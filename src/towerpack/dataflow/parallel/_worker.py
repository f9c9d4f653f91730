"""A worker process: reads units of work from a socket, and writes their results into slots."""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import random
import signal
import socket
import sys
import threading
import time
import traceback
from collections import deque
from typing import Any

import numpy as np

from towerpack._core.errors import DataFlowError
from towerpack.dataflow._memory import Arena, lend
from towerpack.dataflow.parallel._image import Piece, load_image
from towerpack.dataflow.parallel._memory import MappedSlots
from towerpack.dataflow.parallel._messages import Channel, Failure, Message, describe_failure
from towerpack.dataflow.parallel._packing import Extents, Packed, bundle, unpack
from towerpack.dataflow.parallel._work import Job, Result, place_of

_WATCH_S = 0.5


def main(
    channel_fd: int,
    slots_fd: int,
    life_fd: int,
    words_fd: int,
    parent: int,
    known: tuple[int, Job] | None = None,
) -> None:
    """Run until the consumer closes its end. Does not return.

    The descriptors are those of `Fds`. A fork knows a job already, and its number.
    """
    die_with_parent(life_fd, parent)
    leave_signals_to_parent()
    faulthandler.enable(words_fd)
    faulthandler.register(signal.SIGUSR1, words_fd)
    channel = Channel(socket.socket(fileno=channel_fd))
    status = 0
    try:
        channel.send(("ready",))
        Worker(channel, MappedSlots(slots_fd), known).serve()
    except (EOFError, OSError):  # the consumer closed its end, or is gone
        pass
    except BaseException:  # noqa: BLE001  nobody is left to raise it to
        traceback.print_exc()
        status = 1
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)  # clean-up at exit may hang, and there is nothing to clean


def die_with_parent(life_fd: int, parent: int) -> None:
    """End when the parent does, however it ends.

    The kernel sends SIGIO when the last writer of the pipe is gone, and its default action ends
    this process even within code that never lets go of the GIL. It sends it to one process for
    each pipe. Not all systems do, and a process that the parent forked in C may hold the pipe open
    too: hence the thread.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)  # a fork has its parent's handlers
    fcntl.fcntl(life_fd, fcntl.F_SETOWN, os.getpid())
    flags = fcntl.fcntl(life_fd, fcntl.F_GETFL)
    fcntl.fcntl(life_fd, fcntl.F_SETFL, flags | os.O_ASYNC | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        if os.read(life_fd, 1) == b"":  # it ended before we watched
            os._exit(1)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def leave_signals_to_parent() -> None:
    """Do nothing on Ctrl-C and SIGTERM, which schedulers and terminals send to all processes.

    They are the consumer's to handle, and workers end with it. SIGTERM is handled rather than
    ignored, as programs that a map function starts would inherit that, and `terminate()` be lost on
    them. Both were blocked while this interpreter started.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})


class Worker:
    """Serve one consumer."""

    def __init__(self, channel: Channel, slots: MappedSlots, known: tuple[int, Job] | None) -> None:
        self._channel = channel
        self._slots = slots
        self._backlog: deque[Message] = deque()
        self._jobs: dict[int, Job | Failure] = {} if known is None else {known[0]: known[1]}
        self._cancelled = -1
        self._cv2_told = False

    def serve(self) -> None:
        """Work until the other end is closed.

        Raises:
            EOFError: It is.
        """
        while True:
            kind, *fields = self._next()
            # Before work: it may be there since the fork, or since the job was loaded. What imports
            # it within a unit is told by the environment.
            if not self._cv2_told and "cv2" in sys.modules:
                self._cv2_told = True
                sys.modules["cv2"].setNumThreads(0)
            if kind == "unit":
                self._unit(*fields)
            elif kind == "job":
                self._load(*fields)

    def _next(self) -> Message:
        """The next thing to do. What cancels others is read ahead of them."""
        for message in self._channel.poll():
            self._sort_in(message)
        while not self._backlog:
            self._sort_in(self._channel.receive())
        return self._backlog.popleft()

    def _sort_in(self, message: Message) -> None:
        if message[0] == "cancel":
            self._cancelled = message[1]
        elif message[0] == "forget":
            self._slots.forget(message[1])
        else:
            self._backlog.append(message)

    def _load(self, number: int, pieces: list[Piece], fd_count: int) -> None:
        fds = [self._channel.fds.popleft() for _ in range(fd_count)]
        self._jobs.clear()  # one consumer has one job at a time: free what the last one held
        try:
            self._jobs[number] = load_image(pieces, fds)
        except BaseException as error:  # noqa: BLE001  it is raised in the consumer
            failure = DataFlowError(
                f"A worker cannot load the pipeline: {type(error).__name__}: {error}",
                fix="what the pipeline uses must be importable in a fresh process",
            )
            failure.__cause__ = error
            self._jobs[number] = describe_failure(failure)

    def _unit(self, seq: int, job: int, slot: tuple[int, int, int], work: Any, sent: Any) -> None:
        known = None if seq <= self._cancelled else self._jobs.get(job)
        begin = time.perf_counter()
        if known is None or isinstance(known, Failure):
            self._channel.send(("done", seq, None, known, 0, 0, 0.0))
            return
        memory = self._slots.anchor(*slot)
        inputs, used = None, 0
        if sent is not None:
            extents = Extents(*sent)
            inputs = unpack(extents, memory, copy=False)
            used = extents.end
        arena = Arena(memory, used)
        with lend(arena):
            # Lest all workers draw the same from the global generators.
            seed = known.seed_of(work)
            random.seed(seed)
            np.random.seed(seed & 0xFFFFFFFF)
            result = known.run(work, inputs)
            result.block = bundle(result.block)
        try:
            extents = self._pack(seq, result, arena)
        except (EOFError, OSError):
            raise
        except Exception as error:  # noqa: BLE001  it is raised in the consumer
            result = Result([], 0, _not_packed(error, place_of(work)))
            extents = None
        failure = None if result.error is None else describe_failure(result.error)
        seconds = time.perf_counter() - begin
        self._channel.send(("done", seq, extents, failure, result.count, arena.needed, seconds))

    def _pack(self, seq: int, result: Result, arena: Arena) -> Extents | None:
        if result.count == 0:
            return None
        packed = Packed(result.block)
        extents = packed.put(arena)
        while extents is None:
            self._channel.send(("grow", seq, packed.most + arena.missed))
            slot = self._grown(seq)
            if slot is None:
                return None
            extents = packed.put(Arena(self._slots.anchor(*slot)))
        return extents

    def _grown(self, seq: int) -> tuple[int, int, int] | None:
        """The larger slot; `None` if nobody wants the unit. Other messages may come before it."""
        while True:
            message = self._channel.receive()
            if message[0] == "grown" and message[1] == seq:
                return message[2]
            self._sort_in(message)


def _not_packed(error: Exception, place: str) -> DataFlowError:
    failure = DataFlowError(
        f"What a worker made at {place} cannot be sent to the consumer: "
        f"{type(error).__name__}: {error}",
        expected="arrays, numbers, strings, and containers of them; or whatever else pickles",
        fix="convert it in the map function",
    )
    failure.__cause__ = error
    return failure
