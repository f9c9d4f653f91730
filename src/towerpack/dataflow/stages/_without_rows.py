from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError, DataFlowError
from towerpack.dataflow._flow import DataFlow, length_of
from towerpack.dataflow._iteration_state import InnerStream, State, Stream, inner_state
from towerpack.dataflow._plan import InnerNode, Node, Origin, RowCounter
from towerpack.dataflow.arguments import integer_of
from towerpack.dataflow.datapoints import Block, Datapoint, Positions, as_array
from towerpack.dataflow.pipeline_names import (
    Length,
    flows_in,
    inputs_of,
    name_of_stage,
    pipeline_of,
)
from towerpack.dataflow.stage_context import StageContext
from towerpack.dataflow.stages._base import PlannedStage
from towerpack.dataflow.stages._batch import is_batched

Array = NDArray[np.int64]
Row = tuple[str | None, int]
"""Name of a source, or None if there is only one, and the index of a row in it."""


class WithoutRows(PlannedStage):
    """Drop rows of the sources. All other rows keep their order and their random numbers.

    Put this stage directly below the batches: stages above it see new positions. Over a flow with a
    plan, the positions of the rows are found once in each pass, without reading data.

    Args:
        ds: Flow of single rows, not of batches. Each pass must contain the rows equally often.
        origins: Rows to drop: indices in the only source, pairs (name of a source, index), or
            records of `Plan.origin`.

    Raises:
        ConfigError: A row does not exist, the name of its source is missing or shared, or `ds` is
            infinite or consists of batches.
        DataFlowError: The flow does not tell which rows it yields, or a pass contains the rows more
            or less often than another; raised while iterating.
    """

    structural = True
    keeps_keys = True

    def __init__(
        self,
        ds: DataFlow,
        origins: Sequence[int | tuple[str, int] | Origin] | NDArray[np.integer[Any]],
    ) -> None:
        super().__init__(ds)
        self.rows = sorted({*map(_row_of, origins)}, key=lambda row: (row[0] or "", row[1]))
        if is_batched(ds) or length_of(ds) == float("inf"):
            raise ConfigError(
                f"WithoutRows drops single rows of a finite flow, got {ds}.",
                fix="put WithoutRows below BatchData and RepeatedData, and below MixData if that "
                "repeats its flows",
            )
        self._size: int | None = None
        self.length()

    def length(self) -> Length:
        if self._size is None:
            self.compile(StageContext(0, serial=True))
        return self._size

    def identity(self) -> str:
        return f"{len(self.rows)} rows, {zlib.crc32(repr(self.rows).encode()):08x}"

    def compile(self, context: StageContext) -> Node | None:
        # Workers below cannot read ahead, so do not start them.
        return super().compile(replace(context, serial=True))

    def node(self, inner: Node, context: StageContext) -> Node:
        counter = RowCounter()
        traced = inner.traced(counter)
        rows = _numbers(self.rows, counter.sources)
        if self._size is None:
            self._size = (inner.size or 0) - len(traced.positions_of(0, rows))
        return RemainingNode(inner, self._size, traced, rows)

    def open(self, context: StageContext, epoch: int, state: State) -> Stream:
        # Workers know no origins.
        below = replace(context, traced=True, serial=True, workers=None)
        sources = {id(f): name_of_stage(f) for f in flows_in(self.ds) if not inputs_of(f)}
        names = [*sources.values()]
        for name, index in self.rows:
            if len(names) > 1 if name is None else names.count(name) > 1:
                raise ConfigError(
                    f"Several sources of WithoutRows may yield row {index}: {', '.join(names)}.",
                    fix="pass pairs (name of the source, index), or put WithoutRows above one of "
                    "the sources",
                )
        inner = self.ds.open_in(below, epoch, inner_state(state))
        return RemainingStream(inner, self.rows, pipeline_of(self.ds))


def _row_of(origin: Any) -> Row:
    if isinstance(origin, Origin):
        return origin.source, origin.index
    source, index = cast("Any", origin if isinstance(origin, tuple) else (None, origin))
    return source, integer_of(index, "the index of a row", 0)


def _numbers(rows: Iterable[Row], sources: list[tuple[str, int]]) -> Array:
    """Return the numbers that `RowCounter` gives to rows, in order."""
    starts = np.cumsum([0, *(size for _, size in sources)])
    numbers: list[int] = []
    for source, index in rows:
        matches = [i for i, (name, _) in enumerate(sources) if source in (None, name)]
        missing = all(index >= sources[i][1] for i in matches)
        if missing or (source is None and len(matches) > 1):
            problem = "it does not exist" if missing else "its source is not named"
            raise ConfigError(
                f"WithoutRows cannot drop row {index} of {source or 'the source'}: {problem}.",
                expected=", ".join(f"{name}: rows 0 to {size - 1}" for name, size in sources),
                fix="pass pairs (name of the source, index)",
            )
        numbers += [int(starts[i]) + index for i in matches]
    return np.array(sorted(numbers), np.int64)


class RemainingNode(InnerNode):
    """Read the positions of another plan that do not contain some rows.

    `numbers` is the plan of the row numbers, and `dropped` the numbers to drop.
    """

    def __init__(self, inner: Node, size: int, numbers: Node, dropped: Array) -> None:
        super().__init__(inner)
        self.forwarded = (inner,)
        self.size = size
        self._numbers, self._dropped = numbers, dropped

    def read(self, epoch: int, positions: Positions) -> Block:
        return self.inner.read(epoch, self._inner_positions(epoch, positions))

    def get(self, epoch: int, position: int) -> Datapoint:
        (inner,) = self._inner_positions(epoch, range(position, position + 1))
        return self.inner.get(epoch, int(inner))

    def _inner_positions(self, epoch: int, positions: Positions) -> Array:
        last = self._last
        if last is None or last[0] != epoch:
            dropped = self._numbers.positions_of(epoch, self._dropped)
            usual = (self._numbers.size or 0) - (self.size or 0)
            if len(dropped) != usual:
                raise DataFlowError(
                    f"Pass {epoch} contains {len(dropped)} of the rows to drop, but other passes "
                    f"contain {usual}.",
                    fix="put WithoutRows below the stage whose passes contain other rows",
                )
            # Numbers of remaining positions before each dropped one.
            self._last = last = epoch, dropped - np.arange(len(dropped))
        positions = as_array(positions)
        return positions + np.searchsorted(last[1], positions, side="right")


class RemainingStream(InnerStream):
    def __init__(self, inner: Stream, rows: Iterable[Row], name: str) -> None:
        self._inner, self._rows, self._name = inner, {*rows}, name

    def __next__(self) -> Datapoint:
        while True:
            datapoint = next(self._inner)
            origins = self._inner.origins()
            if any(origin.index < 0 for origin in origins):
                raise DataFlowError(
                    f"WithoutRows does not know which rows {self._name} yields.",
                    fix="put WithoutRows directly above the source, below parallel stages",
                )
            rows = {(source, o.index) for o in origins for source in (o.source, None)}
            if not rows & self._rows:
                return datapoint

    def state(self) -> State:
        return {"inner": self._inner.state()}
