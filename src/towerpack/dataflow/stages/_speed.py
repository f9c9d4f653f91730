"""How fast a flow is."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError, DataFlowError
from towerpack.dataflow._datapoints import Datapoint, is_datapoint, values_of
from towerpack.dataflow._flow import DataFlow, Place, Wrapper, compile_flow, open_flow
from towerpack.dataflow._iterator import DataIterator
from towerpack.dataflow._plan import Node
from towerpack.dataflow._stream import State, Stream


@dataclass(frozen=True)
class SpeedReport:
    """What a test of speed found.

    Attributes:
        pipeline: What was measured.
        datapoints: How many were read, without the warm-up.
        seconds: How long that took.
        nbytes: Bytes in the arrays, numbers and strings of these datapoints.
    """

    pipeline: str
    datapoints: int
    seconds: float
    nbytes: int

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
            ("rate", f"{self.datapoints_per_second:,.1f} /s, {micros:,.1f} µs each"),
            ("bytes", f"{self.bytes_per_second / 1e6:,.1f} MB/s"),
        ]
        return "".join(f"{label:<12}{text}\n" for label, text in rows)


class TestDataSpeed(Wrapper):
    """Measures how fast a flow is, by `start()`. Iterated, it is the flow itself.

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

        Raises:
            DataFlowError: A pass has no datapoints.
        """
        report = self.measure()
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
        iterator = self.ds.iterate(epoch=0)
        for _ in range(self.warmup):
            _, iterator = self._next(iterator)
        nbytes = 0
        count = 0
        begin = self._clock()
        while count < self.size:
            datapoint, iterator = self._next(iterator)
            nbytes += bytes_of(datapoint)
            count += 1
            if stop is not None and stop(count):
                break
        seconds = max(self._clock() - begin, 1e-9)
        return SpeedReport(str(self.ds), count, seconds, nbytes)

    def compile(self, place: Place) -> Node | None:
        return compile_flow(self.ds, place)

    def open(self, place: Place, epoch: int, state: State) -> Stream:
        return open_flow(self.ds, place, epoch, state)

    def _next(self, iterator: DataIterator) -> tuple[Datapoint, DataIterator]:
        for datapoint in iterator:
            return datapoint, iterator
        iterator = self.ds.iterate(epoch=iterator.epoch + 1)
        for datapoint in iterator:
            return datapoint, iterator
        raise DataFlowError("A pass has no datapoints to measure.", pipeline=str(self.ds))


def bytes_of(value: Any) -> int:
    """Bytes of the data in a datapoint."""
    if is_datapoint(value):
        return sum(map(bytes_of, values_of(value)))
    if isinstance(value, (np.ndarray, np.generic)):
        return cast("NDArray[Any]", value).nbytes
    if isinstance(value, (str, bytes)):
        return len(value)
    return 8 if isinstance(value, (int, float)) else 0
