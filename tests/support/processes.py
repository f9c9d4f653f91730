"""Processes and memory files seen from outside, for tests that kill and count."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import AnyStr


def children_of(pid: int) -> list[int]:
    """Living processes that `pid` started, zombies left out."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        fields = _stat(path)
        if fields and int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(path.parent.name))
    return sorted(found)


def is_alive(pid: int) -> bool:
    """Whether a process runs: a zombie does not."""
    fields = _stat(Path(f"/proc/{pid}/stat"))
    return bool(fields) and fields[0] != "Z"


def memory_files() -> int:
    """How many anonymous memory files this process holds open."""
    count = 0
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one that lists them is closed by now
            count += "/memfd:" in os.readlink(path)
    return count


def free_port() -> int:
    """A TCP port of this machine at which nobody listens."""
    while True:
        # The system gives higher ones to outgoing connections: what a killed process has listened
        # at could be taken before it is started again.
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", random.randrange(10_000, 28_000)))
            return probe.getsockname()[1]


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Whether a condition came true in time; pauses of the whole machine count little.

    Virtual machines were seen to stand still for 13 s: a test that only looks at the clock fails.
    """
    watch = Stopwatch()
    while watch.seconds < timeout_s:
        if condition():
            return True
        time.sleep(0.01)
        watch.tick()
    return condition()


class Stopwatch:
    """Seconds between ticks; of a pause, in which nothing ticks, 0.2 s count."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._before = time.monotonic()

    def tick(self) -> None:
        now = time.monotonic()
        self.seconds += min(now - self._before, 0.2)
        self._before = now


@contextlib.contextmanager
def stopwatch() -> Iterator[Stopwatch]:
    """Measures a block, for limits that a pause of the whole machine does not break."""
    watch, over = Stopwatch(), threading.Event()

    def run() -> None:
        while not over.wait(0.01):
            watch.tick()

    thread = threading.Thread(target=run, name="stopwatch", daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        over.set()
        thread.join()


def communicate(process: subprocess.Popen[AnyStr], timeout_s: float) -> tuple[AnyStr, AnyStr]:
    """What a process that ends in time has written; pauses of the whole machine count little."""
    with stopwatch() as watch:
        try:
            written = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()  # or it would keep the machine busy while other tests run
            process.communicate()
            raise
    assert watch.seconds < timeout_s
    return written


def _stat(path: Path) -> list[str]:
    try:
        return path.read_text().rpartition(")")[2].split()
    except OSError:
        return []
