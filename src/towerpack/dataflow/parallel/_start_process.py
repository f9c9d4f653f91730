"""How worker processes are started: as fresh interpreters, or as forks on request."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator

from towerpack._core.errors import ConfigError
from towerpack.dataflow.parallel._reader_thread import readers_at_rest
from towerpack.dataflow.parallel._work_units import Job

Fds = tuple[int, int, int, int]
"""Of a worker: its socket, the slots, the pipe that ends with the parent, and for its report."""

_BOOT = (
    "import sys; sys.path[:] = sys.argv[6:]; "
    "from towerpack.dataflow.parallel._worker import main; main(*map(int, sys.argv[1:6]))"
)
_LIBRARIES = ("OMP", "OPENBLAS", "MKL", "VECLIB", "NUMEXPR")
_ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in _LIBRARIES} | {"OPENCV_FOR_THREADS_NUM": "1"}

# How long a source may take for one datapoint while a fork waits for it.
_REST_S = 10.0


def start_fresh(fds: Fds) -> subprocess.Popen[bytes]:
    arguments = [*fds, os.getpid(), *sys.path]
    # A child inherits the mask of the thread that starts it; the worker unblocks them when it has
    # its handlers (`leave_signals_to_parent`).
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        return subprocess.Popen(
            [sys.executable, "-c", _BOOT, *map(str, arguments)],
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **_ONE_THREAD},
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Forked:
    """A forked process, with what is used of `subprocess.Popen`."""

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
            with contextlib.suppress(AttributeError, ValueError):  # there is none, or it is closed
                stream.flush()  # or the copy would write it, too
        parent = os.getpid()
        pid = os.fork()
        if pid:
            return Forked(pid)
        try:
            from towerpack.dataflow.parallel._worker import main

            # Ends of other workers' sockets would keep those from seeing their end.
            own = sorted(fds)
            for low, high in zip([2, *own], [*own, os.sysconf("SC_OPEN_MAX")], strict=True):
                os.closerange(low + 1, high)
            main(*fds, parent, job)
        finally:
            os._exit(1)


@contextlib.contextmanager
def safe_to_fork() -> Generator[None]:
    """Refuse to fork where another thread could hold a lock; those that read ahead wait."""
    with readers_at_rest(_REST_S) as resting:
        threads = [one.name for one in threading.enumerate() if one not in resting]
        loaded = "tensorflow" in sys.modules
        if loaded or len(threads) > 1:
            why = "TensorFlow is loaded" if loaded else f"{len(threads)} threads run"
            raise ConfigError(
                f'start="fork" is not safe here: {why} ({", ".join(threads)}).',
                expected="a process with one thread, and without TensorFlow",
                fix='start="fresh", which is the default',
            )
        yield
