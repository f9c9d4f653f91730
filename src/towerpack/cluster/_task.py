"""One process of a job: its output line by line, and its end."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import IO, BinaryIO, Final

from towerpack._core.logs import get_logger
from towerpack.cluster._cluster import Cluster

_LOG = get_logger(__name__)
# Neither the user's environment nor site-packages matter to what the guard does.
_GUARD: Final = [sys.executable, "-I", "-S", str(Path(__file__).with_name("_guard.py"))]


@contextlib.contextmanager
def guarded() -> Generator[int]:
    """Inside, a process waits that kills all tasks if this one is killed.

    Gives the descriptor by which it is told what to kill.
    """
    reading, writing = os.pipe()
    # In a session of its own: no signal to the launcher's terminal or group reaches it.
    process = subprocess.Popen(_GUARD, stdin=reading, start_new_session=True)
    os.close(reading)
    try:
        yield writing
    finally:
        os.close(writing)
        process.wait()


class Task:
    """A running process of a job, in a process group of its own with its children.

    Args:
        cluster: Its place; the name of its type and its number precede its lines.
        command: The absolute path of a program, and its arguments.
        variables: Of its environment, besides those of this process.
        guard: The descriptor that `guarded` gave.
    """

    def __init__(
        self, cluster: Cluster, command: Sequence[str], variables: Mapping[str, str], guard: int
    ) -> None:
        self.cluster = cluster
        self.asked = False
        """True if it was asked to end: its status then says nothing."""
        self._kill_at = math.inf
        self._guard = guard
        self._process = subprocess.Popen(
            [*_GUARD, str(guard), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **variables, "TF_CONFIG": cluster.tf_config()},
            pass_fds=[guard],
            start_new_session=True,
        )
        name = f"{cluster.task_type} {cluster.task_index}"
        streams = (self._process.stdout, sys.stdout), (self._process.stderr, sys.stderr)
        self.outputs = [Output(pipe, own.buffer, name) for pipe, own in streams if pipe]

    @property
    def status(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        return self._process.poll()

    def end(self, number: int, grace_s: float) -> None:
        """Ask it to end by a signal, once; when the grace is over, `kill_if_late` kills it.

        Its children do not get the signal: the script may need them to save its work.
        """
        if not self.asked:
            self.asked = True
            self._kill_at = time.monotonic() + grace_s
            self._process.send_signal(number)

    def kill_if_late(self) -> None:
        """Kill it, with its children, if it was asked to end and its grace is over."""
        if time.monotonic() > self._kill_at:
            _LOG.warning("%s did not end in time, and is killed.", self.cluster.name)
            self._kill_at = math.inf
            self.kill()

    def kill(self) -> None:
        """Kill it and its children."""
        with contextlib.suppress(ProcessLookupError):  # all have ended
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill what is left of it and its children, and pass on the rest of its output."""
        self.kill()
        self._process.wait()
        for output in self.outputs:
            output.close()
        os.write(self._guard, b"-%d\n" % self._process.pid)  # its number may be given anew


class Output:
    """Passes on what a process writes, in whole lines with its name before each.

    Of a line that is written again and again after carriage returns, as progress bars are, the
    last state is passed on when the line ends.
    """

    def __init__(self, source: IO[bytes], target: BinaryIO, name: str) -> None:
        self.open = True
        self._source = source
        self._target = target
        self._prefix = f"[{name}] ".encode()
        self._rest = b""
        os.set_blocking(source.fileno(), False)

    def fileno(self) -> int:
        """For `select`."""
        return self._source.fileno()

    def pass_on(self) -> bool:
        """Pass on some of what there is, without waiting; False if there was nothing."""
        try:
            data = os.read(self.fileno(), 1 << 16)
        except BlockingIOError:
            return False
        *lines, rest = (self._rest + data).split(b"\n")
        # At its very end, a carriage return may be that of "\r\n".
        self._rest = rest[rest.rfind(b"\r", 0, -1) + 1 :]
        self._write(lines)
        self.open = bool(data)
        return self.open

    def close(self) -> None:
        """Pass on the rest, also of a line that has no end."""
        while self.open and self.pass_on():
            pass
        if self._rest:
            self._write([self._rest])
        self._source.close()

    def _write(self, lines: list[bytes]) -> None:
        for line in lines:
            self._target.write(self._prefix + line.rstrip(b"\r").rpartition(b"\r")[2] + b"\n")
        self._target.flush()
