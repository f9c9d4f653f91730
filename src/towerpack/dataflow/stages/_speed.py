"""How fast a flow is."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError
from towerpack.dataflow._arguments import integer_of
from towerpack.dataflow._datapoints import is_datapoint, values_of
from towerpack.dataflow._flow import DataFlow, Place, Wrapper, compile_flow, open_flow
from towerpack.dataflow._passes import endless
from towerpack.dataflow._plan import Node
from towerpack.dataflow._progress import progress
from towerpack.dataflow._stream import State, Stream

_SIZED_EVERY = 16  # to look at a small datapoint takes longer than to read it


@dataclass(frozen=True)
class SpeedReport:
    """What a test of speed found.

    Attributes:
        pipeline: What was measured.
        datapoints: How many were read, without the warm-up.
        seconds: How long that took.
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
        rows = [
            ("pipeline", self.pipeline),
            ("datapoints", f"{self.datapoints:,} in {self.seconds:.3g} s"),
            ("first", f"after {self.first_s:.3g} s"),
            ("rate", f"{self.datapoints_per_second:,.1f} /s, {micros:,.1f} µs each"),
            ("bytes", f"{self.bytes_per_second / 1e6:,.1f} MB/s"),
        ]
        return "".join(f"{label:<12}{text}\n" for label, text in rows)


class TestDataSpeed(Wrapper):
    """Measures how fast a flow is, by `start()`. Iterated, it is the flow itself.

    `profile` tells which stage takes the time.

    Contract: order, length, randomness, safety and resuming of `ds`.

    Args:
        ds: What to measure.
        size: Datapoints to read; passes follow one another until there are enough.
        warmup: Datapoints to read before the clock starts.
        clock: Seconds that pass.
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
        size, warmup = integer_of(size, "size"), integer_of(warmup, "warmup")
        if size < 1 or warmup < 0:
            raise ConfigError(
                f"Speed cannot be measured with size={size} and warmup={warmup}.",
                expected="size 1 or more, warmup 0 or more",
            )
        self.size = size
        self.warmup = warmup
        self._clock = clock

    def start(self) -> SpeedReport:
        """Read, measure, write a table to standard output, and return its numbers.

        Shows its progress on a terminal.

        Raises:
            DataFlowError: A pass has no datapoints.
        """
        with progress("speed", self.size) as tick:

            def show(count: int) -> bool:
                tick(count)
                return False

            report = self.measure(show)
        sys.stdout.write(str(report))
        return report

    def measure(self, stop: Callable[[int], bool] | None = None) -> SpeedReport:
        """Read, measure, and return the numbers.

        Args:
            stop: Called after each datapoint that counts, with how many these are; says whether
                they are enough.

        Raises:
            DataFlowError: A pass has no datapoints.
        """
        clock = self._clock
        count = sized = sized_bytes = 0
        with closing(endless(self.ds)) as datapoints:
            asked = clock()
            first = next(datapoints)
            first_s = clock() - asked
            rest = chain([first], datapoints)
            for _ in range(self.warmup):
                next(rest)
            begin = clock() if self.warmup else asked
            for datapoint in rest:
                if count % _SIZED_EVERY == 0:
                    sized_bytes += bytes_of(datapoint)
                    sized += 1
                count += 1
                if count == self.size or (stop is not None and stop(count)):
                    break
            seconds = max(clock() - begin, 1e-9)
        return SpeedReport(
            str(self.ds), count, seconds, round(sized_bytes / sized * count), first_s
        )

    def compile(self, place: Place) -> Node | None:
        return compile_flow(self.ds, place)

    def open(self, place: Place, epoch: int, state: State) -> Stream:
        return open_flow(self.ds, place, epoch, state)


def bytes_of(value: Any) -> int:
    """Bytes of the data in a datapoint."""
    if is_datapoint(value):
        return sum(map(bytes_of, values_of(value)))
    if isinstance(value, (np.ndarray, np.generic)):
        return cast("NDArray[Any]", value).nbytes
    if isinstance(value, (str, bytes)):
        return len(value)
    return 8 if isinstance(value, (int, float)) else 0
