from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError, DataFlowError
from towerpack.dataflow._flow import DataFlow, length_of, require_plan
from towerpack.dataflow._plan import InnerNode, Node, Origin, Tracer, rows_in
from towerpack.dataflow.arguments import integer_of
from towerpack.dataflow.datapoints import Block, Columns, Datapoint, Positions, as_array
from towerpack.dataflow.pipeline_names import Length
from towerpack.dataflow.stage_context import StageContext
from towerpack.dataflow.stages._base import PlannedStage
from towerpack.dataflow.stages._batch import is_batched

Array = NDArray[np.int64]
_PIECE = 1 << 16  # positions that are searched at a time


class WithoutRows(PlannedStage):
    """Drop rows of the sources. All other rows keep their order and their random numbers.

    Put this stage directly below the batches: stages above it see new positions. The positions of
    the rows are found once in each pass, without reading data.

    Args:
        ds: Flow of single rows with a plan, not of batches. Each pass must contain the rows equally
            often.
        origins: Rows to drop: indices in the only source, pairs (name of a source, index), or
            records of `Plan.origin`.

    Raises:
        ConfigError: A row does not exist, the name of its source is missing, or `ds` is infinite,
            consists of batches or can only be read in order.
        DataFlowError: A pass contains the rows more or less often than another; raised while
            iterating.
    """

    structural = True
    keeps_keys = True

    def __init__(
        self,
        ds: DataFlow,
        origins: Sequence[int | tuple[str, int] | Origin] | NDArray[np.integer[Any]],
    ) -> None:
        super().__init__(ds)
        self.rows = sorted({*map(_row_of, origins)})
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
            self.compile(StageContext(0))
        return self._size

    def identity(self) -> str:
        return f"{len(self.rows)} rows, {zlib.crc32(repr(self.rows).encode()):08x}"

    def compile(self, context: StageContext) -> Node:
        # Workers below cannot read ahead, so do not start them.
        context = replace(context, serial=True)
        return self.node(require_plan(self.ds, context, "WithoutRows needs random access"), context)

    def node(self, inner: Node, context: StageContext) -> Node:
        tracer = Tracer(inner)
        numbers = np.array([tracer.number_of(*row) for row in self.rows], np.int64)
        node = RemainingNode(inner, tracer, numbers)
        if self._size is None:
            self._size = (inner.size or 0) - len(node.dropped(0))
        node.size = self._size
        return node


def _row_of(origin: Any) -> tuple[str, int]:
    if isinstance(origin, Origin):
        return origin.source, origin.index
    source, index = cast("Any", origin if isinstance(origin, tuple) else ("", origin))
    return source, integer_of(index, "the index of a row", 0)


class RemainingNode(InnerNode):
    """Read the positions of another plan that do not contain the rows with some numbers."""

    def __init__(self, inner: Node, tracer: Tracer, numbers: Array) -> None:
        super().__init__(inner)
        self.forwarded = (inner,)
        self._tracer, self._numbers = tracer, numbers

    def dropped(self, epoch: int) -> Array:
        """Return the positions of a pass that contain the rows, in order."""
        size, parts = self.inner.size or 0, [np.zeros(0, np.int64)]
        for start in range(0, size, _PIECE):
            block = self._tracer.root.read(epoch, range(start, min(start + _PIECE, size)))
            if isinstance(block, Columns):
                hits = self._hits(block).reshape(block.size, -1).any(axis=1)
            else:
                hits = np.array([self._hits([datapoint]).any() for datapoint in block])
            parts.append(start + np.flatnonzero(hits))
        return np.concatenate(parts)

    def _hits(self, block: Block) -> NDArray[np.bool_]:
        return np.isin(rows_in(block)[:, 0], self._numbers)

    def read(self, epoch: int, positions: Positions) -> Block:
        return self.inner.read(epoch, self._inner_positions(epoch, positions))

    def get(self, epoch: int, position: int) -> Datapoint:
        (inner,) = self._inner_positions(epoch, range(position, position + 1))
        return self.inner.get(epoch, int(inner))

    def _inner_positions(self, epoch: int, positions: Positions) -> Array:
        last = self._last
        if last is None or last[0] != epoch:
            dropped = self.dropped(epoch)
            usual = (self.inner.size or 0) - (self.size or 0)
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
