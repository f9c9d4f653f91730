import contextlib
import os
import random
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Generator, Sequence
from types import FrameType
from typing import Final

from towerpack._core.errors import ConfigError
from towerpack._core.logs import get_logger
from towerpack.cluster._cluster import Cluster
from towerpack.cluster._task import Task, guarded

_LOG = get_logger(__name__)
_ASKED_TO_END: Final = (130, 143)  # Exit statuses of an interrupted or preempted run, now saved
_TICK_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 60.0
_CRASH_LOOP: Final = 3
_SERVERS_GRACE_S: Final = 5.0
# The system gives higher ports to outgoing connections, perhaps before a worker listens there.
_PORTS: Final = range(10_000, 28_000)


class Launcher:
    """Launcher of a job whose local processes run the same Python script.

    Each process finds its task in `TF_CONFIG`, and the number of restarts in `TOWERPACK_RESTART`. A
    job with parameter servers also has a chief. Its workers and servers are restarted alone, at
    their addresses. After the chief has ended, the other processes are ended. SIGTERM and Ctrl-C
    are forwarded to all processes; a second Ctrl-C kills them.

    Args:
        script: Arguments for `python`: `train.py --lr 0.1` or `-m package.train`, as a list.
        workers: Number of workers.
        ps: Number of parameter servers.
        max_restarts: How many times processes are restarted after a failure.
        grace_s: Time in seconds that a process has to end after SIGTERM before it is killed.
        backoff_s: Pause in seconds before the first restart. It doubles with each, up to 60 s.
        min_life_s: Three failures in a row, each after less than this time in seconds, end it.

    Raises:
        ConfigError: The script does not exist.
    """

    def __init__(
        self,
        script: Sequence[str],
        *,
        workers: int,
        ps: int = 0,
        max_restarts: int = 0,
        grace_s: float = 30.0,
        backoff_s: float = 1.0,
        min_life_s: float = 60.0,
    ) -> None:
        if not script or (script[0] != "-m" and not os.path.isfile(script[0])):
            raise ConfigError(
                f"The script to launch must be an existing file, got {' '.join(script[:1])!r}.",
                fix="pass SCRIPT.py [ARGUMENTS], or -m MODULE [ARGUMENTS]",
            )
        self._command = [sys.executable, *script]
        self._counts = {"chief": 1 if ps else 0, "worker": workers, "ps": ps}
        self._servers = ("worker", "ps") if ps else ()
        self._max_restarts = max_restarts
        self._grace_s = grace_s
        self._backoff_s = backoff_s
        self._min_life_s = min_life_s
        self._restarts = 0
        self._signal: int | None = None
        self._kill_now = False

    def run(self) -> int:
        """Run the job and return its exit status. Call this only in the main thread.

        Returns:
            0 for success, or the exit status of the process that failed first (128 + n if signal n
                killed it). If this process gets signal n: 128 + n.
        """
        short = 0
        with handling_signals(self._on_signal), guarded() as guard:
            while True:
                began = time.monotonic()
                status = self._live(guard)
                short = short + 1 if time.monotonic() - began < self._min_life_s else 0
                if status in (0, *_ASKED_TO_END) or self._restarts == self._max_restarts:
                    break
                if short == _CRASH_LOOP:
                    text = "The job failed %d times in a row within %g s. It is not restarted."
                    _LOG.error(text, short, self._min_life_s)
                    break
                self._pause()
                if self._signal:
                    break
        return 128 + self._signal if self._signal else status

    def _pause(self) -> None:
        pause_s = 0.0 if self._signal else self._next_restart("All processes restart")
        end = time.monotonic() + pause_s
        while not self._signal and time.monotonic() < end:
            time.sleep(_TICK_S)

    def _next_restart(self, what: str) -> float:
        """Count a restart, and return the pause before it in seconds."""
        pause_s = min(self._backoff_s * 2.0 ** min(self._restarts, 20), _LONGEST_PAUSE_S)
        self._restarts += 1
        text = "%s in %g s (restart %d of %d)."
        _LOG.warning(text, what, pause_s, self._restarts, self._max_restarts)
        return pause_s

    def _live(self, guard: int) -> int:
        """Run all tasks until they end. Return 0, or the exit status of the first failed task."""
        ports = iter(free_ports(sum(self._counts.values())))
        jobs = {
            kind: [f"127.0.0.1:{next(ports)}" for _ in range(count)]
            for kind, count in self._counts.items()
        }
        running: list[Task] = []

        def start(cluster: Cluster) -> None:
            number = str(self._restarts)
            variables = {"PYTHONUNBUFFERED": "1", "TOWERPACK_RESTART": number}
            running.append(Task(cluster, self._command, variables, guard))

        try:
            for kind, addresses in jobs.items():
                for index in range(len(addresses)):
                    start(Cluster(jobs, kind, index))
            return self._watch(running, start)
        finally:
            for task in running:
                task.kill()
            for task in running:
                task.close()

    def _watch(self, running: list[Task], start: Callable[[Cluster], None]) -> int:
        failed = 0
        waiting: list[tuple[float, Cluster]] = []
        while running:
            outputs = [output for task in running for output in task.outputs if output.open]
            for output in select.select(outputs, [], [], _TICK_S)[0]:
                output.pass_on()
            for task, status in _ended(running):
                running.remove(task)
                task.close()
                if task.asked or failed:
                    continue
                if self._is_replaceable(task, running):
                    what = f"{task.cluster.name} ended with exit status {status} and restarts"
                    due = time.monotonic() + self._next_restart(what)
                    waiting.append((due, task.cluster))
                elif status:
                    failed = status
                    self._report(task.cluster.name, status)
            leading = [task for task in running if task.cluster.task_type not in self._servers]
            if self._signal or failed or not leading:
                waiting.clear()
            for lost in [lost for lost in waiting if lost[0] <= time.monotonic()]:
                waiting.remove(lost)
                start(lost[1])
            if self._signal or failed:
                number = signal.SIGINT if self._signal == signal.SIGINT else signal.SIGTERM
                for task in leading:
                    task.end(number, self._grace_s)
            if not leading:  # Until now, the chief may have needed the others to save.
                for task in running:
                    task.end(signal.SIGTERM, min(self._grace_s, _SERVERS_GRACE_S))
            for task in running:
                if self._kill_now:
                    task.kill()
                task.kill_if_late()
        return failed

    def _is_replaceable(self, task: Task, running: list[Task]) -> bool:
        """Return whether an ended task can restart alone, while the chief waits for it."""
        kinds = {other.cluster.task_type for other in running if other.status is None}
        more = self._restarts < self._max_restarts and not self._signal
        return more and task.cluster.task_type in self._servers and "chief" in kinds

    def _report(self, name: str, status: int) -> None:
        if status in _ASKED_TO_END:
            text = "%s was asked to end (exit status %d), so all end. The same command continues."
        else:
            text = (
                "%s ended first, with exit status %d. All others are asked to end. The output of "
                "each process shows which of them failed."
            )
        _LOG.error(text, name, status)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self._signal:
            self._signal = number
            text = "%s: forwarded to all processes. After %g s, they are killed."
            _LOG.warning(text, signal.Signals(number).name, self._grace_s)
        elif number == signal.SIGINT:
            self._kill_now = True


@contextlib.contextmanager
def handling_signals(handler: Callable[[int, FrameType | None], None]) -> Generator[None]:
    """Handle signals in a `with` block, except signals that are ignored, as under `nohup`."""
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    numbers = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def _ended(tasks: list[Task]) -> list[tuple[Task, int]]:
    """Return the tasks that have ended with their exit statuses, likely causes of failure first."""
    statuses = [(task, task.status) for task in tasks]
    ended = [(task, status) for task, status in statuses if status is not None]
    # A task that loses a peer ends with its own status, perhaps at the same moment.
    ended.sort(key=lambda each: (each[1] >= 0, each[1] not in _ASKED_TO_END))
    return [(task, status if status >= 0 else 128 - status) for task, status in ended]


def free_ports(number: int) -> list[int]:
    ports: list[int] = []
    with contextlib.ExitStack() as probes:
        while len(ports) < number:
            probe = probes.enter_context(socket.socket())
            with contextlib.suppress(OSError):  # The port is in use.
                probe.bind(("127.0.0.1", random.choice(_PORTS)))
                ports.append(probe.getsockname()[1])
    return ports
