"""Worker process, which receives work through a socket and writes results to shared memory."""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import random
import select
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

import numpy as np

from towerpack._core.errors import DataFlowError
from towerpack.dataflow._arena import Arena, lend
from towerpack.dataflow.parallel._pickled_job import Piece, load_job
from towerpack.dataflow.parallel._pickles_and_errors import (
    Failure,
    describe_failure,
    dump,
    error_from,
    load,
)
from towerpack.dataflow.parallel._slot_packing import Extents, bundle, pack, put, space_for, unpack
from towerpack.dataflow.parallel._slots import SlotMemory, map_shared, reserved_file
from towerpack.dataflow.parallel._work_units import Job, Result, Work, place_of

_WATCH_S = 0.5
_MOST_MAPPED = 256


def send(channel: Connection, *message: Any, fds: Sequence[int] = ()) -> None:
    """Send a message and file descriptors. Raise `OSError` if the other end is closed."""
    channel.send_bytes(dump((*message, len(fds))))
    for fd in fds:
        send_handle(channel, fd, 0)


def receive(channel: Connection) -> list[Any]:
    """Receive a message. Its last item is a list of descriptors, which the caller must close."""
    *message, count = load(channel.recv_bytes())
    return [*message, [recv_handle(channel) for _ in range(count)]]


def main(
    channel_fd: int,
    slots_fd: int,
    death_fd: int,
    report_fd: int,
    parent: int,
    job: Job | None = None,
) -> None:
    """Run a worker until the consumer closes the channel, and exit. See `Fds` for descriptors."""
    die_with_parent(death_fd, parent)
    leave_signals_to_parent()
    faulthandler.enable(report_fd)
    faulthandler.register(signal.SIGUSR1, report_fd)
    channel = Connection(channel_fd)
    status = 0
    try:
        send(channel, "ready")
        Worker(channel, slots_fd, job).serve()
    except (EOFError, OSError):  # the consumer closed the channel or died
        pass
    except BaseException:  # noqa: BLE001  printed, since no caller could handle it
        traceback.print_exc()
        status = 1
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)  # without exit handlers, which may hang


def die_with_parent(death_fd: int, parent: int) -> None:
    """End this process when the parent ends in any way.

    The kernel sends SIGIO when the last writer of the pipe ends. A thread checks the parent too,
    since not all systems do so, and processes forked by C code may keep the pipe open.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)  # a fork inherits handlers
    fcntl.fcntl(death_fd, fcntl.F_SETOWN, os.getpid())
    flags = fcntl.fcntl(death_fd, fcntl.F_GETFL)
    fcntl.fcntl(death_fd, fcntl.F_SETFL, flags | os.O_ASYNC | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        if os.read(death_fd, 1) == b"":  # the parent has ended already
            os._exit(1)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def leave_signals_to_parent() -> None:
    """Disable Ctrl-C and SIGTERM, which the consumer handles."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Not SIG_IGN, which programs started by a map function would inherit.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})


class Worker:
    def __init__(self, channel: Connection, slots_fd: int, job: Job | None) -> None:
        self._channel = channel
        self._poll = select.poll()  # ten times as fast as `channel.poll`
        self._poll.register(channel, select.POLLIN)
        self._slots_fd = slots_fd
        self._slots: dict[int, SlotMemory] = {}
        self._backlog: deque[list[Any]] = deque()
        self._job: Job | Failure | None = job
        use_one_thread()

    def serve(self) -> None:
        while True:
            kind, *fields = self._next()
            if kind == "job":
                self._load(*fields)
            elif kind == "unit" and isinstance(self._job, Job):
                self._unit(self._job, *fields)
            else:
                failure = self._job if kind == "unit" else None
                send(self._channel, "done", None, failure, 0, 0, 0.0)

    def _next(self) -> list[Any]:
        """Return the next message, after reading all available messages to find cancellations."""
        while not self._backlog or self._poll.poll(0):
            message = receive(self._channel)
            if message[0] != "cancel":
                self._backlog.append(message)
                continue
            for waiting in self._backlog:
                if waiting[0] == "unit":
                    waiting[0] = "canceled"
        return self._backlog.popleft()

    def _load(self, pieces: list[Piece], fds: list[int]) -> None:
        self._job = None  # frees the memory of the last job
        try:
            self._job = load_job(pieces, fds)
            use_one_thread()
        except BaseException as error:  # noqa: BLE001  raised in the consumer
            fix = "make all modules that the pipeline uses importable in a new process"
            failure = error_from(error, "A worker cannot load the pipeline", fix=fix)
            self._job = describe_failure(failure)

    def _unit(
        self, job: Job, offset: int, nbytes: int, work: Work, sent: Extents, _: list[int]
    ) -> None:
        begin = time.perf_counter()
        if len(self._slots) > _MOST_MAPPED:  # most are no longer used
            self._slots.clear()
        if offset not in self._slots:
            self._slots[offset] = map_shared(self._slots_fd, nbytes, offset)
        memory = np.frombuffer(self._slots[offset], np.uint8)
        inputs = unpack(sent, memory, copy=False) if sent else None
        arena = Arena(memory, used=max((start + size for start, size in sent), default=0))
        with lend(arena):
            # Otherwise all workers would draw the same numbers from the global generators.
            seed = job.seed_of(work)
            random.seed(seed)
            np.random.seed(seed & 0xFFFFFFFF)
            result = job.run(work, inputs)
            result.block = bundle(result.block)
        extents, fds = None, ()
        try:
            if result.count:
                extents, fds = _pack(result, arena)
        except Exception as error:  # noqa: BLE001  raised in the consumer
            if not isinstance(error, DataFlowError):  # out of memory
                what = f"The result of a worker for {place_of(work)} cannot be sent to the consumer"
                error = error_from(error, what, fix="convert the result in the map function")
            result = Result([], 0, error)
        failure = None if result.error is None else describe_failure(result.error)
        seconds = time.perf_counter() - begin
        message = "done", extents, failure, result.count, arena.needed, seconds
        send(self._channel, *message, fds=fds)
        for fd in fds:
            os.close(fd)


def use_one_thread() -> None:
    # Fresh workers that import OpenCV later get the setting from the environment.
    if "cv2" in sys.modules:
        sys.modules["cv2"].setNumThreads(0)


def _pack(result: Result, arena: Arena) -> tuple[Extents | None, tuple[int, ...]]:
    parts = pack(result.block)
    extents = put(parts, arena)
    if extents is not None:
        return extents, ()
    fd, nbytes = reserved_file("result", space_for(parts) + arena.missed)
    return put(parts, Arena(np.frombuffer(map_shared(fd, nbytes), np.uint8))), (fd,)
