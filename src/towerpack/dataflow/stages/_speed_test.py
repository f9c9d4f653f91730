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

_SIZED_EVERY = 16  # measuring the size of a small datapoint takes longer than reading it


@dataclass(frozen=True)
class SpeedReport:
    """Result of a speed test.

    Attributes:
        pipeline: Name of the pipeline.
        datapoints: Number of datapoints read after the warm-up.
        seconds: Duration of reading them, in seconds.
        nbytes: Size of their arrays, numbers and strings in bytes, estimated from a sample.
        first_s: Seconds until the first datapoint.
    """

    pipeline: str
    datapoints: int
    seconds: float
    nbytes: int
    first_s: float = 0.0

    @property
    def datapoints_per_second(self) -> float:
        """Datapoints per second."""
        return self.datapoints / self.seconds

    @property
    def bytes_per_second(self) -> float:
        """Bytes per second."""
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
    """Measure the speed of a flow by `start()`. To measure each stage, use `profile`.

    Args:
        ds: Flow to measure.
        size: Number of datapoints to read, from several passes if necessary.
        warmup: Number of datapoints to read before the clock starts.
        clock: Function that returns the time in seconds.
    """

    __test__ = False  # tells pytest that this is not a test class
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
        """Measure the speed, print a table to standard output, and return its numbers."""
        with progress("speed", self.size) as tick:
            report = self.measure(tick)
        sys.stdout.write(str(report))
        return report

    def measure(self, stop: Callable[[int], object] = lambda count: False) -> SpeedReport:
        """Measure the speed without printing.

        Args:
            stop: Function of the number of datapoints that returns true to end the measurement.
        """
        clock = self._clock
        count = sized = sized_bytes = 0
        with closing(endless(self.ds)) as datapoints:
            opened = clock()
            rest = chain([next(datapoints)], datapoints)
            first_s = clock() - opened
            for _ in range(self.warmup):
                next(rest)
            begin = clock() if self.warmup else opened
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
