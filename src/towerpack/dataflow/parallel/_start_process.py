from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator

from towerpack._core.errors import ConfigError
from towerpack._core.worker_gpus import hidden_gpus
from towerpack.dataflow.parallel._reader_thread import readers_at_rest
from towerpack.dataflow.parallel._work_units import Job

Fds = tuple[int, int, int, int]
"""File descriptors passed to a worker: socket, slot memory, parent-death pipe, report file."""

_BOOT = (
    "import sys; sys.path[:] = sys.argv[6:]; "
    "from towerpack.dataflow.parallel._worker import main; main(*map(int, sys.argv[1:6]))"
)
_LIBRARIES = ("OMP", "OPENBLAS", "MKL", "VECLIB", "NUMEXPR")
_ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in _LIBRARIES} | {"OPENCV_FOR_THREADS_NUM": "1"}

# Seconds that a fork waits for readers to finish a datapoint.
_REST_S = 10.0


def start_fresh(fds: Fds) -> subprocess.Popen[bytes]:
    arguments = [*fds, os.getpid(), *sys.path]
    # A child inherits the signal mask. The worker unblocks signals when it has set its handlers.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        return subprocess.Popen(
            [sys.executable, "-c", _BOOT, *map(str, arguments)],
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **_ONE_THREAD, **hidden_gpus()},
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Forked:
    """Forked process with a part of the interface of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


Process = subprocess.Popen[bytes] | Forked


def start_fork(fds: Fds, job: Job) -> Forked:
    with safe_to_fork():
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, ValueError):  # missing or closed
                stream.flush()  # otherwise the fork would write the buffer too
        parent = os.getpid()
        pid = os.fork()
        if pid:
            return Forked(pid)
        try:
            from towerpack.dataflow.parallel._worker import main

            # Open copies of other workers' sockets would hide from them that theirs is closed.
            limits = [2, *sorted(fds), os.sysconf("SC_OPEN_MAX")]
            for low, high in itertools.pairwise(limits):
                os.closerange(low + 1, high)
            os.environ.update(hidden_gpus())
            main(*fds, parent, job)
        finally:
            os._exit(1)


@contextlib.contextmanager
def safe_to_fork() -> Generator[None]:
    """Pause readers of data. Raise `ConfigError` if TensorFlow or other threads forbid a fork."""
    with readers_at_rest(_REST_S) as resting:
        threads = [thread.name for thread in threading.enumerate() if thread not in resting]
        loaded = "tensorflow" in sys.modules
        if loaded or len(threads) > 1:
            reason = "TensorFlow is loaded" if loaded else f"{len(threads)} threads run"
            raise ConfigError(
                f'start="fork" is not safe in this process: {reason} ({", ".join(threads)}).',
                expected="a process with one thread and without TensorFlow",
                fix='use start="fresh", which is the default',
            )
        yield
