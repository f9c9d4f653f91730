"""Each datapoint several times in a row."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError
from towerpack.dataflow._arguments import integer_of
from towerpack.dataflow._blocks import Block, Columns, Positions, as_array, take
from towerpack.dataflow._datapoints import Datapoint, is_datapoint, rebuild, values_of
from towerpack.dataflow._flow import (
    DataFlow,
    Length,
    Place,
    Wrapper,
    compile_flow,
    length_of,
    open_flow,
)
from towerpack.dataflow._plan import Node
from towerpack.dataflow._stream import State, Stream, Tally, WindowStream, inner_state


class RepeatedDataPoint(Wrapper):
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

    def __init__(self, ds: DataFlow, n: int) -> None:
        super().__init__(ds)
        n = integer_of(n, "n")
        if n < 1:
            raise ConfigError(f"Nothing can be repeated {n} times.", expected="1 or more")
        self.n = n

    def length(self) -> Length:
        length = length_of(self.ds)
        return None if length is None else length * self.n

    def identity(self) -> str:
        return str(self.n)

    def compile(self, place: Place) -> Node | None:
        inner = compile_flow(self.ds, place)
        return None if inner is None else RepeatPointNode(inner, self.n)

    def open(self, place: Place, epoch: int, state: State) -> Stream:
        inner = open_flow(self.ds, place.kept_in_order(), epoch, inner_state(state))
        return RepeatPointStream(inner, self.n, state, place.tally)


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
        return take_copies(self.inner.read(epoch, wanted), which)

    def get(self, epoch: int, position: int) -> Datapoint:
        source = position // self.n
        last = self._last
        if last is None or last[:2] != (epoch, source):
            last = (epoch, source, self.inner.get(epoch, source))
            self._last = last  # one assignment: safe between threads
        return duplicate(last[2])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None}


class RepeatPointStream(WindowStream):
    """Repeats what another stream gives."""

    def __init__(self, inner: Stream, n: int, state: State, tally: Tally | None) -> None:
        def repeated(window: int, datapoints: list[Datapoint]) -> list[Datapoint]:
            (datapoint,) = datapoints
            return [*(duplicate(datapoint) for _ in range(n - 1)), datapoint]

        super().__init__(inner, 1, repeated, state, tally)


def take_copies(block: Block, order: NDArray[np.int64]) -> Block:
    """The datapoints of a block in another order; those taken twice do not share memory."""
    if isinstance(block, Columns):
        return take(block, order)
    seen: set[int] = set()
    rows: list[Datapoint] = []
    for index in order.tolist():
        rows.append(duplicate(block[index]) if index in seen else block[index])
        seen.add(index)
    return rows


def duplicate(datapoint: Datapoint) -> Datapoint:
    """The same datapoint with arrays, lists and dicts of its own, also within others."""
    if not is_datapoint(datapoint):
        return _copy(datapoint)
    return rebuild(datapoint, map(_copy, values_of(datapoint)))


def _copy(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return cast("NDArray[Any]", value).copy()
    if type(value) not in (list, tuple, dict):
        return value
    return rebuild(value, map(_copy, values_of(value)))
