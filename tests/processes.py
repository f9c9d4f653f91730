"""Processes and memory files seen from outside, for tests that kill and count."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path


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


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Whether a condition came true in time; pauses of the whole machine count little.

    Virtual machines were seen to stand still for 13 s: a test that only looks at the clock fails.
    """
    before, waited_s = time.monotonic(), 0.0
    while waited_s < timeout_s:
        if condition():
            return True
        time.sleep(0.01)
        now = time.monotonic()
        waited_s += min(now - before, 0.2)
        before = now
    return condition()


def _stat(path: Path) -> list[str]:
    try:
        return path.read_text().rpartition(")")[2].split()
    except OSError:
        return []
