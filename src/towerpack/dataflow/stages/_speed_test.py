"""Measure how fast a flow is read."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from itertools import chain

from towerpack.dataflow._flow import DataFlow
from towerpack.dataflow._iteration_state import State, Stream
from towerpack.dataflow._plan import Node
from towerpack.dataflow._progress import endless, progress
from towerpack.dataflow.arguments import integer_of
from towerpack.dataflow.datapoints import bytes_of
from towerpack.dataflow.stage_context import StageContext
from towerpack.dataflow.stages._base import PlannedStage

_SIZED_EVERY = 16  # to look at a small datapoint takes longer than to read it


@dataclass(frozen=True)
class SpeedReport:
    """What a test of speed found.

    Attributes:
        datapoints: How many were read, without the warm-up, in so many `seconds`.
        nbytes: Bytes in the arrays, numbers and strings of these datapoints, from some of them.
        first_s: Seconds until the first datapoint.
    """

    pipeline: str
    datapoints: int
    seconds: float
    nbytes: int
    first_s: float = 0.0

    @property
    def datapoints_per_second(self) -> float:
        """The rate."""
        return self.datapoints / self.seconds

    @property
    def bytes_per_second(self) -> float:
        """The rate in bytes."""
        return self.nbytes / self.seconds

    def __str__(self) -> str:
        micros = 1e6 * self.seconds / self.datapoints
        return (
            f"pipeline    {self.pipeline}\n"
            f"datapoints  {self.datapoints:,} in {self.seconds:.3g} s\n"
            f"first       after {self.first_s:.3g} s\n"
            f"rate        {self.datapoints_per_second:,.1f} /s, {micros:,.1f} µs each\n"
            f"bytes       {self.bytes_per_second / 1e6:,.1f} MB/s\n"
        )


class TestDataSpeed(PlannedStage):
    """Measure how fast a flow is, by `start()`; `profile` tells which stage takes the time.

    Contract: order, length, randomness, safety and resuming of `ds`.

    Args:
        size: Datapoints to read; passes follow one another until there are enough.
        warmup: Datapoints to read before the clock starts.
    """

    __test__ = False  # for pytest: this is not a test class
    transparent = True

    def __init__(
        self,
        ds: DataFlow,
        size: int = 5000,
        warmup: int = 0,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(ds)
        self.size = integer_of(size, "size", 1)
        self.warmup = integer_of(warmup, "warmup", 0)
        self._clock = clock

    def start(self) -> SpeedReport:
        """Measure, write a table to standard output, and return its numbers."""
        with progress("speed", self.size) as tick:
            report = self.measure(tick)
        sys.stdout.write(str(report))
        return report

    def measure(self, stop: Callable[[int], object] = lambda count: False) -> SpeedReport:
        """`start` without a table; `stop` says of how many datapoints whether they are enough."""
        clock = self._clock
        count = sized = sized_bytes = 0
        with closing(endless(self.ds)) as datapoints:
            asked = clock()
            rest = chain([next(datapoints)], datapoints)
            first_s = clock() - asked
            for _ in range(self.warmup):
                next(rest)
            begin = clock() if self.warmup else asked
            for datapoint in rest:
                if count % _SIZED_EVERY == 0:
                    sized_bytes += bytes_of(datapoint)
                    sized += 1
                count += 1
                if count == self.size or stop(count):
                    break
            seconds = max(clock() - begin, 1e-9)
        nbytes = round(sized_bytes / sized * count)
        return SpeedReport(str(self.ds), count, seconds, nbytes, first_s)

    def node(self, inner: Node, context: StageContext) -> Node:
        return inner

    def open(self, context: StageContext, epoch: int, state: State) -> Stream:
        return self.ds.open_in(context, epoch, state)
