"""Rows of a batch, which maps directly below the batch fill with their results."""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import starmap
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from towerpack.dataflow._arena import Allocate, Array, address_of

Result = TypeVar("Result")
Key = tuple[int, tuple[int, ...], np.dtype[Any]]
"""Number of the request within its datapoint, then shape and dtype of the row."""


class _Rows(threading.local):
    offered: RowLender | None = None
    """Rows of the batch that this thread reads, for maps below the batch."""
    making: RowLender | None = None
    """Rows for the datapoint that this thread creates."""


_ROWS = _Rows()


@contextmanager
def _set(name: str, value: RowLender | None) -> Generator[None]:
    before = getattr(_ROWS, name)
    setattr(_ROWS, name, value)
    try:
        yield
    finally:
        setattr(_ROWS, name, before)


def empty_row(shape: int | tuple[int, ...], dtype: DTypeLike) -> Array:
    """Allocate an array for one component of a datapoint, directly in the batch if possible.

    Call this function in a `MapData` below a `BatchData` over an indexable source, to save a copy.
    Only stages that reorder (`ShuffleData`, `RepeatedData`, `ConcatData`) may stand between the
    two. Elsewhere, it is `numpy.empty(shape, dtype)`.

    Write all elements, return the array in the datapoint, and keep no reference: its memory is
    reused.

    Args:
        shape: Shape of the component.
        dtype: Data type of the component.
    """
    lender = _ROWS.making
    return np.empty(shape, dtype) if lender is None else lender.empty(shape, dtype)


class RowLender:
    """Allocator of the rows of a batch of `size` datapoints, for the nodes in `makers`."""

    def __init__(self, size: int, allocate: Allocate, makers: Container[RowMaker]) -> None:
        self.makers = makers
        self._size = size
        self._allocate = allocate
        # An array for the batch, and its rows that were handed out.
        self._columns: dict[Key, tuple[Array, list[Array]]] = {}
        self._row = -1
        self._requests = 0

    def offered(self) -> AbstractContextManager[None]:
        return _set("offered", self)

    def turns(self, calls: Iterable[Any]) -> Generator[Any]:
        """Iterate over `calls`, and move to the next row of the batch for each call."""
        for call in calls:
            self._row += 1
            self._requests = 0
            yield call

    def empty(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> Array:
        sides = (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(shape)
        key = (self._requests, sides, np.dtype(dtype))
        self._requests += 1
        if self._row == 0:
            self._columns[key] = self._allocate((self._size, *sides), dtype), []
        if key not in self._columns or self._row >= self._size:
            return np.empty(shape, dtype)
        data, handed = self._columns[key]
        row = data[self._row, ...]
        handed.append(row)
        return row

    def whole(self, arrays: Sequence[Array]) -> Array | None:
        """Return the batch whose rows are `arrays` in this order, if any, and forget it."""
        for key, (data, handed) in self._columns.items():
            # User code may have set another shape or dtype of a row.
            fits = (arrays[0].shape, arrays[0].dtype) == (data.shape[1:], data.dtype)
            if not fits or not len(handed) == len(data) == len(arrays):
                continue
            if all(map(_same, handed, arrays)):
                del self._columns[key]
                return data
        return None


def _same(row: Array, array: Array) -> bool:
    here = array is row or address_of(array) == address_of(row)
    return here and array.flags.c_contiguous


class RowMaker:
    """Base class of nodes that create datapoints one by one, in rows of the batch above."""

    def make(self, f: Callable[..., Result], calls: Iterable[tuple[Any, ...]]) -> list[Result]:
        """Call a function for each datapoint, in which `empty_row` returns rows of the batch."""
        lender = _ROWS.offered
        if lender is None or self not in lender.makers:
            return without_rows(lambda: list(starmap(f, calls)))
        before, _ROWS.making = _ROWS.making, lender  # `_set` would be slower
        try:
            return list(starmap(f, lender.turns(calls)))
        finally:
            _ROWS.making = before


def without_rows(f: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function in which `empty_row` returns new arrays, not rows of a batch."""
    if _ROWS.making is None:
        return f(*arguments)
    with _set("making", None):
        return f(*arguments)
