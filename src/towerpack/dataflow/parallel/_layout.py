"""Where in a slot the components of a batch lie, so that several workers can write its rows."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from towerpack.dataflow._arena import address_of, aligned
from towerpack.dataflow._datapoints import Datapoint, keys_of, rebuild, values_of
from towerpack.dataflow.parallel._memory import Bytes

Array = NDArray[Any]

Laid = Literal["laid", "misfit", "drew"]
"""What became of a part of a batch: it is where it belongs; it is not as it was expected, or was
not made at all; or it drew from a global random generator, which is seeded for whole batches."""


class Column(NamedTuple):
    """One component: where it begins, its shape and its dtype."""

    start: int
    shape: tuple[int, ...]
    dtype: str


class Layout(NamedTuple):
    """Where in a slot the components of a batch lie.

    Attributes:
        like: A datapoint of the batch's kind, without its components.
        columns: One for each component.
        nbytes: Of the slot.
    """

    like: Datapoint
    columns: tuple[Column, ...]
    nbytes: int

    @property
    def rows(self) -> int:
        """Datapoints in the batch."""
        return self.columns[0].shape[0]

    def batch(self, memory: Bytes) -> Datapoint:
        """The batch that lies in `memory`, which it keeps alive."""
        return rebuild(self.like, self.arrays(memory))

    def arrays(self, memory: Bytes) -> list[Array]:
        """The components that lie in `memory`."""
        return [np.ndarray(shape, dtype, memory, start) for start, shape, dtype in self.columns]


def layout_of(batch: Datapoint) -> Layout | None:
    """A layout for batches like this one; `None` if they are not made of plain arrays."""
    if type(batch) not in (tuple, list, dict):
        return None
    arrays = values_of(batch)
    rows = _rows(arrays[0]) if arrays else 0
    if not rows or any(_rows(array) != rows for array in arrays):
        return None
    columns: list[Column] = []
    end = 0
    for array in arrays:
        start = aligned(end, array.nbytes)
        columns.append(Column(start, array.shape, array.dtype.str))
        end = start + array.nbytes
    if not end:
        return None
    return Layout(rebuild(batch, [None] * len(arrays)), tuple(columns), end)


def _rows(array: object) -> int:
    """Rows of a plain array; 0 for anything else."""
    if type(array) is not np.ndarray or not array.ndim:
        return 0
    # Structured types have more to them than `dtype.str` tells.
    return 0 if array.dtype.hasobject or array.dtype.names else len(array)


class RowsArena:
    """Some rows of a batch, as memory for those who make them.

    Args:
        layout: Of the whole batch.
        memory: The slot.
        start: The first row.
        stop: The row after the last.
    """

    def __init__(self, layout: Layout, memory: Bytes, start: int, stop: int) -> None:
        self._like = layout.like
        self._memory = memory
        self._rows = [column[start:stop] for column in layout.arrays(memory)]
        self._free = list(self._rows)

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """The rows of the next component that is like this; memory of its own if there is none."""
        kind = np.dtype(dtype)
        for index, rows in enumerate(self._free):
            if rows.shape == tuple(shape) and rows.dtype == kind:
                return self._free.pop(index)
        return np.empty(shape, kind)

    def take(self, part: Datapoint) -> bool:
        """Write a part of a batch into its rows. False if it is not as the batch was expected."""
        like = self._like
        if type(part) is not type(like) or keys_of(part) != keys_of(like):
            return False
        values = values_of(part)
        if any(map(_differ, values, self._rows)):
            return False
        elsewhere = [
            (rows, value)
            for rows, value in zip(self._rows, values, strict=True)
            if address_of(rows) != address_of(value) or rows.strides != value.strides
        ]
        # One that lies in the rows of another would be overwritten before it is read.
        apart = [
            (rows, value.copy() if np.may_share_memory(value, self._memory) else value)
            for rows, value in elsewhere
        ]
        for rows, value in apart:
            rows[...] = value
        return True


def _differ(value: object, rows: Array) -> bool:
    return type(value) is not np.ndarray or value.shape != rows.shape or value.dtype != rows.dtype


def shares(rows: int, parts: int) -> list[tuple[int, int]]:
    """Rows of a batch in so many parts, which differ by one row at most."""
    parts = max(1, min(rows, parts))
    ends = [rows * index // parts for index in range(parts + 1)]
    return list(pairwise(ends))
