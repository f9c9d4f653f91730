from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from towerpack._core.logs import get_logger
from towerpack.dataflow._arena import Allocate
from towerpack.dataflow._batch_rows import RowLender, RowMaker
from towerpack.dataflow._compile import Wrapper
from towerpack.dataflow._flow import DataFlow
from towerpack.dataflow._plan import Node, gather, makers_of
from towerpack.dataflow._stacking import Pad, list_rows, stack_rows
from towerpack.dataflow.arguments import check_choice, integer_of
from towerpack.dataflow.datapoints import Block, Columns, Datapoint, to_rows, values_of
from towerpack.dataflow.stage_context import StageContext
from towerpack.dataflow.stages._base import Transform, WindowStage

log = get_logger(__name__)

Stack = Literal["array", "list"]


class BatchData(WindowStage):
    """Stack every `batch_size` datapoints into one datapoint of the same structure.

    The length is `len(ds) // batch_size`, rounded up with `remainder`. Arrays and NumPy scalars
    keep their dtypes. Python bools become bool, ints int64, floats float32, and texts object.

    Args:
        ds: Flow of tuples, lists or dicts.
        batch_size: Number of datapoints in a batch.
        remainder: Whether to yield a smaller batch at the end. Without it, a flow shorter than
            `batch_size` yields nothing and logs a warning.
        pad: Value that pads ragged components, at the end of every axis, to the largest size in
            the batch; or a dict of such values by index or key.
        stack: "array", or "list" to collect components in lists.

    Raises:
        ConfigError: An argument is invalid.
        BatchError: Datapoints do not stack; raised while iterating.
    """

    makes_batches = True
    structural = True
    reads_again = False
    rows: slice = slice(None)  # rows of each batch to read; see `ShardRows`

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
        check_choice(stack, "stack", get_args(Stack))
        self.batch_size = self.window_size = integer_of(batch_size, "batch_size", 1)
        self.remainder = remainder
        self.collate = Collate(stack, pad)
        self._warned = False

    def resized(self, size: int) -> int:
        whole, rest = divmod(size, self.batch_size)
        return whole + (self.remainder and rest > 0)

    def arguments(self) -> str:
        return str(self.batch_size)

    def identity(self) -> str:
        return f"{self.batch_size}, remainder" if self.remainder else str(self.batch_size)

    def node(self, inner: Node, context: StageContext) -> Node:
        self.warn_if_short(inner.size)
        size = None if inner.size is None else self.resized(inner.size)
        return BatchNode(inner, self.batch_size, size, self.collate, self.rows)

    def transform(self, context: StageContext, epoch: int) -> Transform:
        def batch(window: int, datapoints: list[Datapoint]) -> list[Datapoint]:
            whole = self.remainder or len(datapoints) == self.batch_size
            if window == 0:
                self.warn_if_short(len(datapoints))
            first = window * self.batch_size
            positions = range(first, first + len(datapoints))[self.rows]
            return [gather(self.collate, datapoints[self.rows], positions)] if whole else []

        return batch

    def warn_if_short(self, datapoints: int | None) -> None:
        if self._warned or self.remainder or not datapoints or datapoints >= self.batch_size:
            return
        self._warned = True
        message = "%s yields no batch: a pass has %d datapoints, a batch needs %d. Choose a"
        message += " smaller batch_size, or pass remainder=True."
        log.warning(message, self, datapoints, self.batch_size)


@dataclass(frozen=True)
class Collate:
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
    """Return whether stacking the rows of a column gives the same column."""
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

    def members(self, epoch: int, position: int) -> range:
        stop = (position + 1) * self.batch_size
        if self.inner.size is not None and stop > self.inner.size:
            stop = self.inner.size
        return range(position * self.batch_size, stop)[self.rows]

    def get(self, epoch: int, position: int) -> Datapoint:
        members = self.members(epoch, position)
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
