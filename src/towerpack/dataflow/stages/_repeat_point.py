"""Each datapoint several times in a row."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from towerpack.dataflow._arguments import integer_of
from towerpack.dataflow._blocks import Block, Columns, Positions, as_array, take
from towerpack.dataflow._datapoints import Datapoint, is_datapoint, rebuild, values_of
from towerpack.dataflow._flow import DataFlow, Length, Place, length_of
from towerpack.dataflow._plan import Node
from towerpack.dataflow.stages._base import Transform, WindowStage


class RepeatedDataPoint(WindowStage):
    """Gives every datapoint `n` times before the next one.

    What stands below runs once for all of them, and their arrays are their own. So
    `MapData(RepeatedDataPoint(MapData(ds, decode), 4), augment, rng=True)` decodes a picture once
    for four augmented ones.

    Contract: in order; `n * len(ds)`; not random; thread- and fork-safe as `ds` is; resumable as
    `ds` is, reading one datapoint again.

    Args:
        ds: What to repeat.
        n: How often.
    """

    lifts = True
    window_size = 1

    def __init__(self, ds: DataFlow, n: int) -> None:
        super().__init__(ds)
        self.n = integer_of(n, "n", 1)

    def length(self) -> Length:
        length = length_of(self.ds)
        return None if length is None else length * self.n

    def identity(self) -> str:
        return str(self.n)

    def node(self, inner: Node, place: Place) -> Node:
        return RepeatPointNode(inner, self.n)

    def transform(self, place: Place, epoch: int) -> Transform:
        return lambda window, datapoints: [*map(duplicate, datapoints * (self.n - 1)), *datapoints]


class RepeatPointNode(Node):
    """Reads position p as position p // n of another plan."""

    def __init__(self, inner: Node, n: int) -> None:
        self.inner = inner
        self.n = n
        self.size = None if inner.size is None else inner.size * n
        self.chunk = inner.chunk
        self._last: tuple[int, int, Datapoint] | None = None

    def read(self, epoch: int, positions: Positions) -> Block:
        wanted, which = np.unique(as_array(positions) // self.n, return_inverse=True)
        block = self.inner.read(epoch, wanted)
        if isinstance(block, Columns):
            return take(block, which)
        return [duplicate(block[index]) for index in which.tolist()]

    def get(self, epoch: int, position: int) -> Datapoint:
        source = position // self.n
        last = self._last
        if last is None or last[:2] != (epoch, source):
            last = (epoch, source, self.inner.get(epoch, source))
            self._last = last  # one assignment: safe between threads
        return duplicate(last[2])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None}


def duplicate(datapoint: Datapoint) -> Datapoint:
    """The same datapoint with arrays, lists and dicts of its own, also within others."""
    if not is_datapoint(datapoint):
        return _copy(datapoint)
    return rebuild(datapoint, map(_copy, values_of(datapoint)))


def _copy(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return cast("NDArray[Any]", value).copy()
    return duplicate(value) if type(value) in (list, tuple, dict) else value
