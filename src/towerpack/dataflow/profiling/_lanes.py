"""Where probes write what they measure: a lane for every thread of every process.

Lanes are small files, mapped into memory: no engine needs to carry them, and what a worker had
measured outlives it. A stage is charged for the time in which it was innermost, so the time of a
lane is shared out, not counted twice.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from towerpack.dataflow._blocks import Columns
from towerpack.dataflow._datapoints import values_of
from towerpack.dataflow.stages._speed import bytes_of

CALLS, ITEMS, WALL, CALLS_BELOW, SAMPLED_WALL, SAMPLED_CPU, SAMPLED_ITEMS, SAMPLED_BYTES = range(8)
FIELDS = 8

_SAMPLE_EVERY = 4  # reading a thread's CPU clock and a datapoint's size costs a microsecond each
_ROWS_SIZED = 8

Tables = dict[str, NDArray[np.float64]]
"""For each lane, named `process-thread-name`, its numbers: [stages, FIELDS]."""


class Lanes:
    """The lanes of one measurement. Travels to workers, which then write lanes of their own.

    Args:
        directory: For the files.
        stages: How many stages are measured.
    """

    def __init__(self, directory: str, stages: int) -> None:
        self._directory = directory
        self._stages = stages
        self._local = threading.local()

    def mine(self) -> Lane:
        """The lane of this thread."""
        lane: Lane | None = getattr(self._local, "lane", None)
        if lane is None or lane.process != os.getpid():
            lane = Lane(self._memory())
            self._local.lane = lane
        return lane

    def read(self) -> Tables:
        """All lanes, as they are now."""
        read = {path.name: np.fromfile(path) for path in Path(self._directory).iterdir()}
        # A file is empty between its making and its `truncate`: that lane has measured nothing.
        return {
            name: table.reshape(self._stages, FIELDS) for name, table in read.items() if table.size
        }

    def _memory(self) -> mmap.mmap:
        size = self._stages * FIELDS * 8
        path = os.path.join(self._directory, name_of_lane())
        try:
            # Not "w": a worker that is sent its job again goes on in the lane that it has.
            with open(path, "a+b") as file:
                file.truncate(size)
                return mmap.mmap(file.fileno(), size)
        except FileNotFoundError:
            # The measurement is over, and a worker is still at work: nobody reads this.
            return mmap.mmap(-1, size)

    def __getstate__(self) -> tuple[str, int]:
        return self._directory, self._stages

    def __setstate__(self, state: tuple[str, int]) -> None:
        self.__init__(*state)


def times_blocked() -> int:
    """How often this thread has given up the CPU to wait for something; 0 where nobody counts."""
    if sys.platform != "linux":
        return 0
    import resource  # there is none on Windows

    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def name_of_lane() -> str:
    """Of this thread."""
    thread = threading.current_thread()
    return f"{os.getpid()}-{thread.ident}-{quote(thread.name, safe='')}"


class Lane:
    """What one thread has measured.

    Args:
        memory: For its numbers.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        self.process = os.getpid()
        self._table = memoryview(memory).cast("d")
        self._stack: list[int] = []
        self._since = 0.0
        self._cpu_since = 0.0
        self._blocks = 0
        self._sampling = False
        self._number = 0

    def enter(self, stage: int) -> None:
        """From now on, `stage` is charged."""
        now = time.perf_counter()
        stack = self._stack
        if stack:
            self._charge(stack[-1], now)
            self._table[stack[-1] * FIELDS + CALLS_BELOW] += 1
        else:
            self._sampling = self._number % _SAMPLE_EVERY == 0
            self._number += 1
        stack.append(stage)
        self._resume()

    def leave(self, items: int, result: Any, *, block: bool) -> None:
        """The innermost stage is done: what is around it is charged from now on.

        Args:
            items: How many datapoints it gave.
            result: Them.
            block: Whether `result` is a block, rather than a datapoint.
        """
        now = time.perf_counter()
        stack, table = self._stack, self._table
        stage = stack.pop()
        self._charge(stage, now)
        at = stage * FIELDS
        if not stack or stack[-1] != stage:  # else it called itself
            table[at + CALLS] += 1
            table[at + ITEMS] += items
            if self._sampling and items:
                table[at + SAMPLED_ITEMS] += items
                table[at + SAMPLED_BYTES] += _bytes_of(result, block=block)
        self._resume()

    def _charge(self, stage: int, now: float) -> None:
        at = stage * FIELDS
        self._table[at + WALL] += now - self._since
        if self._sampling:
            computed = time.thread_time() - self._cpu_since
            if 0 < self._blocks == times_blocked():
                computed = now - self._since  # other threads had the CPU: that is no waiting
            self._table[at + SAMPLED_WALL] += now - self._since
            self._table[at + SAMPLED_CPU] += computed

    def _resume(self) -> None:
        """Leaves out the time that the lane took for itself."""
        if self._sampling:
            self._cpu_since = time.thread_time()
            self._blocks = times_blocked()
        self._since = time.perf_counter()


def _bytes_of(result: Any, *, block: bool) -> float:
    if isinstance(result, Columns):
        return sum(map(bytes_of, values_of(result.data)))
    if not block:
        return bytes_of(result)
    some = result[:_ROWS_SIZED]
    return sum(map(bytes_of, some)) / max(1, len(some)) * len(result)
