"""A look at what flows by, and at how fast."""

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

from towerpack.dataflow._arguments import integer_of
from towerpack.dataflow._datapoints import (
    Block,
    Datapoint,
    Positions,
    as_ints,
    describe,
    is_datapoint,
    keys_of,
    to_rows,
    values_of,
)
from towerpack.dataflow._flow import DataFlow, Place, open_flow, pipeline_of
from towerpack.dataflow._plan import InnerNode, Node
from towerpack.dataflow._progress import endless, progress
from towerpack.dataflow._stream import InnerStream, State, Stream
from towerpack.dataflow.stages._base import PlannedStage


class PrintData(PlannedStage):
    """Write the structure of the first datapoints to standard output, once for each iterator.

    Contract: order, length, randomness, safety and resuming of `ds`.

    Args:
        num: How many datapoints to write about; of a resumed iterator none.
        max_depth: How deep to go into nested lists and dicts.
        max_list: How many elements of a list to show.
    """

    transparent = True

    def __init__(
        self,
        ds: DataFlow,
        num: int = 1,
        name: str | None = None,
        max_depth: int = 3,
        max_list: int = 3,
    ) -> None:
        super().__init__(ds)
        self.num = integer_of(num, "num")
        self.name = name
        self.max_depth = integer_of(max_depth, "max_depth")
        self.max_list = integer_of(max_list, "max_list")

    def node(self, inner: Node, place: Place) -> Node:
        return PrintNode(inner, self)

    def open(self, place: Place, epoch: int, state: State) -> Stream:
        inner = open_flow(self.ds, place, epoch, state)
        told = set[int]() if place.tally is None else place.tally.told
        # The state is that of `ds`, so it does not tell the position: a resumed pass is past it.
        if state is not None or id(self) in told:
            return inner
        told.add(id(self))
        return PrintStream(inner, self)

    def show(self, position: int, datapoint: Datapoint) -> None:
        """Write about one datapoint."""
        title = f"{self.name}: " if self.name else ""
        lines = [f"{title}datapoint {position} of {pipeline_of(self.ds)}"]
        lines += describe_tree(datapoint, self.max_depth, self.max_list)
        sys.stdout.write("\n".join(lines) + "\n")


class PrintNode(InnerNode):
    """Write about datapoints that are read from another plan."""

    def __init__(self, inner: Node, flow: PrintData) -> None:
        super().__init__(inner)
        self._flow = flow
        self._left = set(range(flow.num))

    def read(self, epoch: int, positions: Positions) -> Block:
        block = self.inner.read(epoch, positions)
        if self._left:
            for position, row in zip(as_ints(positions), to_rows(block), strict=True):
                self._show(position, row)
        return block

    def get(self, epoch: int, position: int) -> Datapoint:
        datapoint = self.inner.get(epoch, position)
        if self._left:
            self._show(position, datapoint)
        return datapoint

    def _show(self, position: int, datapoint: Datapoint) -> None:
        if position in self._left:
            self._left.discard(position)
            self._flow.show(position, datapoint)


class PrintStream(InnerStream):
    """Write about datapoints that another stream gives."""

    def __init__(self, inner: Stream, flow: PrintData) -> None:
        self._inner = inner
        self._flow = flow
        self._position = 0

    def __next__(self) -> Datapoint:
        datapoint = next(self._inner)
        if self._position < self._flow.num:
            self._flow.show(self._position, datapoint)
            self._position += 1
        return datapoint

    def state(self) -> State:
        return self._inner.state()


def describe_tree(value: Any, max_depth: int, max_list: int, indent: int = 1) -> list[str]:
    """Lines about a datapoint: types, shapes, dtypes, ranges."""
    pad = "  " * indent
    if not is_datapoint(value):
        return [f"{pad}{_leaf(value)}"]
    items = list(zip(keys_of(value), values_of(value), strict=True))
    lines = [f"{pad}{type(value).__name__} of {len(items)}"]
    if indent > max_depth:
        return lines
    shown = len(items) if isinstance(value, dict) or indent == 1 else max_list
    for key, inner in items[:shown]:
        first, *rest = describe_tree(inner, max_depth, max_list, indent + 1)
        lines += [f"{pad}  {key}: {first.strip()}", *rest]
    if shown < len(items):
        lines.append(f"{pad}  ... and {len(items) - shown} more")
    return lines


def _leaf(value: Any) -> str:
    text = describe(value)
    if isinstance(value, np.ndarray):
        array = cast("NDArray[Any]", value)
        if array.size and array.dtype.kind in "biuf":
            text += f" in [{float(array.min()):.5g}, {float(array.max()):.5g}]"
        return f"array {text}"
    if isinstance(value, (str, bytes)):
        return f"{text}: {value[:40]!r}"
    number = isinstance(value, (bool, int, float, np.generic))
    return f"{type(cast('object', value)).__name__} {value}" if number else text


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

    def node(self, inner: Node, place: Place) -> Node:
        return inner

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
