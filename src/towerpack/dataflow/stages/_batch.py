"""Batches: consecutive datapoints, stacked."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError
from towerpack._core.logs import get_logger
from towerpack.dataflow._arena import Allocate
from towerpack.dataflow._batch_rows import RowLender, RowMaker
from towerpack.dataflow._compile import Wrapper
from towerpack.dataflow._flow import DataFlow
from towerpack.dataflow._plan import Node, makers_of
from towerpack.dataflow._stacking import Pad, list_rows, stack_rows
from towerpack.dataflow.arguments import integer_of
from towerpack.dataflow.datapoints import Block, Columns, Datapoint, to_rows, values_of
from towerpack.dataflow.stage_context import StageContext
from towerpack.dataflow.stages._base import Transform, WindowStage

log = get_logger(__name__)

Stack = Literal["array", "list"]


class BatchData(WindowStage):
    """Stack every `batch_size` datapoints into one, which is a tuple, list or dict as they are.

    Arrays and NumPy scalars keep their dtypes; bool stays bool, Python ints become int64, Python
    floats float32. Strings and bytes become object arrays, which cut nothing off.

    Contract: in order; `len(ds) // batch_size`, rounded up with `remainder`; not random; thread-
    and fork-safe as `ds` is; resumable at once, or as `ds` is.

    Args:
        ds: Its datapoints are tuples, lists or dicts.
        remainder: Also yield the last, smaller batch. Without it, a flow of fewer datapoints than
            `batch_size` gives nothing, which is logged as a warning.
        pad: A value that fills up ragged components, at the end of every axis, to the largest in
            the batch; or a dict of such values for the components that may be ragged.
        stack: "array", or "list" to collect components in lists, as they are.

    Raises:
        BatchError: Datapoints do not stack; raised while iterating.
    """

    makes_batches = True
    structural = True
    reads_again = False
    rows: slice = slice(None)  # of each batch; see `ShardRows`

    def __init__(
        self,
        ds: DataFlow,
        batch_size: int,
        remainder: bool = False,
        *,
        pad: float | Mapping[Hashable, float] | None = None,
        stack: Stack = "array",
    ) -> None:
        super().__init__(ds)
        if stack not in ("array", "list"):
            raise ConfigError(f"There is no stack={stack!r}.", expected='"array" or "list"')
        self.batch_size = self.window_size = integer_of(batch_size, "batch_size", 1)
        self.remainder = remainder
        self.collate = Collate(stack, pad)
        self._told = False

    def resized(self, size: int) -> int:
        whole, rest = divmod(size, self.batch_size)
        return whole + (self.remainder and rest > 0)

    def arguments(self) -> str:
        return str(self.batch_size)

    def identity(self) -> str:
        return f"{self.batch_size}, remainder" if self.remainder else str(self.batch_size)

    def node(self, inner: Node, context: StageContext) -> Node:
        self.tell_if_too_few(inner.size)
        size = None if inner.size is None else self.resized(inner.size)
        return BatchNode(inner, self.batch_size, size, self.collate, self.rows)

    def transform(self, context: StageContext, epoch: int) -> Transform:
        def batch(window: int, datapoints: list[Datapoint]) -> list[Datapoint]:
            whole = self.remainder or len(datapoints) == self.batch_size
            if window == 0:
                self.tell_if_too_few(len(datapoints))
            return [self.collate(datapoints[self.rows])] if whole else []

        return batch

    def tell_if_too_few(self, datapoints: int | None) -> None:
        """Log a warning, once, if a pass, or its first batch, has some, and too few for a batch."""
        if self._told or self.remainder or not datapoints or datapoints >= self.batch_size:
            return
        self._told = True
        message = "%s gives no batch: a pass has %d datapoints, and a batch %d. Make batches"
        message += " smaller, or give remainder=True."
        log.warning(message, self, datapoints, self.batch_size)


@dataclass(frozen=True)
class Collate:
    """Make one datapoint of a block that is not empty, whose rows may be made in a `lender`."""

    stack: Stack
    pad: Pad | None
    allocate: Allocate = np.empty

    def __call__(self, block: Block, lender: RowLender | None = None) -> Datapoint:
        if isinstance(block, Columns):
            values = values_of(block.data)
            if self.stack == "array" and all(map(_stacks_alike, values)):
                return block.data
            block = to_rows(block)
        if self.stack == "list":
            return list_rows(block)
        return stack_rows(block, self.pad, self.allocate, lender)


def _stacks_alike(column: NDArray[Any]) -> bool:
    """Whether a column is what a stack of its rows would be: scalars have native byte order."""
    return column.dtype.kind not in "OSU" and (column.ndim > 1 or column.dtype.isnative)


@dataclass(eq=False)
class BatchNode(Node):
    inner: Node
    batch_size: int
    size: int | None
    collate: Collate
    rows: slice

    def __post_init__(self) -> None:
        self._makers = [maker for maker in makers_of(self.inner) if isinstance(maker, RowMaker)]

    @property
    def releases_gil(self) -> bool:
        return self.collate.stack == "array" and self.inner.releases_gil

    def lay_into(self, allocate: Allocate) -> None:
        self.collate = replace(self.collate, allocate=allocate)
        self.inner.lay_into(allocate)

    def members(self, position: int) -> range:
        """The positions in `inner` of one batch, or of the rows of it that are read."""
        stop = (position + 1) * self.batch_size
        if self.inner.size is not None and stop > self.inner.size:
            stop = self.inner.size
        return range(position * self.batch_size, stop)[self.rows]

    def get(self, epoch: int, position: int) -> Datapoint:
        members = self.members(position)
        if not self._makers:
            return self.collate(self.inner.read(epoch, members))
        lender = RowLender(len(members), self.collate.allocate, self._makers)
        with lender.offered():
            block = self.inner.read(epoch, members)
        return self.collate(block, lender)


def is_batched(ds: DataFlow) -> bool:
    while isinstance(ds, Wrapper) and not ds.makes_batches:
        ds = ds.ds
    return isinstance(ds, Wrapper)
