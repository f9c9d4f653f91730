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
# The guard needs neither environment variables of Python nor site-packages.
_GUARD: Final = [sys.executable, "-I", "-S", str(Path(__file__).with_name("_guard.py"))]


@contextlib.contextmanager
def guarded() -> Generator[int]:
    """Run a guard process during a `with` block. It kills all tasks if this process is killed.

    Yields:
        File descriptor for messages to the guard.
    """
    reading, writing = os.pipe()
    # The guard has its own session, so signals to this terminal or group do not reach it.
    process = subprocess.Popen(_GUARD, stdin=reading, start_new_session=True)
    os.close(reading)
    try:
        yield writing
    finally:
        os.close(writing)
        process.wait()


class Task:
    """Running process of a job, in its own process group.

    Args:
        cluster: Cluster of the process. Its type and index precede each line of output.
        command: Absolute path of a program, and its arguments.
        variables: Environment variables to add to those of this process.
        guard: File descriptor from `guarded`.
        directory: Working directory; None for that of this process.
        output: Target of the output; None for the output streams of this process.
    """

    def __init__(
        self,
        cluster: Cluster,
        command: Sequence[str],
        variables: Mapping[str, str],
        guard: int,
        *,
        directory: str | None = None,
        output: BinaryIO | None = None,
    ) -> None:
        self.cluster = cluster
        self.asked = False
        """Whether the process was asked to end. If so, its exit status is ignored."""
        self._kill_at = math.inf
        self._guard = guard
        self._process = subprocess.Popen(
            [*_GUARD, str(guard), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **variables, "TF_CONFIG": cluster.tf_config()},
            pass_fds=[guard],
            cwd=directory,
            start_new_session=True,
        )
        name = f"{cluster.task_type} {cluster.task_index}"
        streams = (self._process.stdout, sys.stdout), (self._process.stderr, sys.stderr)
        self.outputs = [Output(p, output or stream.buffer, name) for p, stream in streams if p]

    @property
    def status(self) -> int | None:
        """Exit status, negative for a signal; None while the process runs."""
        return self._process.poll()

    def end(self, number: int, grace_s: float) -> None:
        """Send a signal to the process, but not to its children. Later calls do nothing.

        The script may need its children to save its state. `kill_if_late` kills all later.
        """
        if not self.asked:
            self.asked = True
            self._kill_at = time.monotonic() + grace_s
            self._process.send_signal(number)

    def kill_if_late(self) -> None:
        if time.monotonic() > self._kill_at:
            _LOG.warning("%s did not end within its grace period. Killed it.", self.cluster.name)
            self._kill_at = math.inf
            self.kill()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # All have ended.
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill the process group, and forward the rest of the output."""
        self.kill()
        self._process.wait()
        for output in self.outputs:
            output.close()
        os.write(self._guard, b"-%d\n" % self._process.pid)  # The number may be reused.


class Output:
    """Forwarder of a process's output. Each line is prefixed with the name of the process.

    Only whole lines are forwarded. If carriage returns rewrite a line, as in a progress bar, only
    its last state is forwarded.
    """

    def __init__(self, source: IO[bytes], target: BinaryIO, name: str) -> None:
        self.open = True
        self._source = source
        self._target = target
        self._prefix = f"[{name}] ".encode()
        self._rest = b""
        os.set_blocking(source.fileno(), False)

    def fileno(self) -> int:
        return self._source.fileno()

    def pass_on(self) -> bool:
        """Forward the output that is available now. Return False if there is none."""
        try:
            data = os.read(self.fileno(), 1 << 16)
        except BlockingIOError:
            return False
        *lines, rest = (self._rest + data).split(b"\n")
        # A carriage return at the very end may belong to "\r\n".
        self._rest = rest[rest.rfind(b"\r", 0, -1) + 1 :]
        self._write(lines)
        self.open = bool(data)
        return self.open

    def close(self) -> None:
        """Forward the remaining output, including an incomplete last line."""
        while self.open and self.pass_on():
            pass
        if self._rest:
            self._write([self._rest])
        self._source.close()

    def _write(self, lines: list[bytes]) -> None:
        for line in lines:
            self._target.write(self._prefix + line.rstrip(b"\r").rpartition(b"\r")[2] + b"\n")
        self._target.flush()
