"""Rows of a batch, lent to the maps directly below it, which write their results in place.

What such a map asks for with `empty_row` is a row of an array for the whole batch. If the stack
then gets all rows of an array, in order, it takes that array as it is. Otherwise it copies.
"""

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
"""Number of rows that a datapoint had asked for before; shape and dtype of the row."""


class _Rows(threading.local):
    offered: RowLender | None = None
    """Rows of the batch that this thread reads, for the maps below it."""
    making: RowLender | None = None
    """Rows for the datapoint that this thread makes."""


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
    """Memory for one component of the datapoint that is being made, in its place in the batch.

    That saves copying it there. For functions of a map directly below a `BatchData`, over an
    indexable source; between the two may be stages that only reorder (`ShuffleData`,
    `RepeatedData`, `ConcatData`). Anywhere else it is `numpy.empty(shape, dtype)`.

    Write all of it, return it in the datapoint, and do not keep it: it is a part of the batch,
    whose memory workers use again.

    Args:
        shape: Of the component, as `numpy.empty` takes it.
        dtype: Of the component.
    """
    lender = _ROWS.making
    return np.empty(shape, dtype) if lender is None else lender.empty(shape, dtype)


class RowLender:
    """Rows of a batch of `size` datapoints, lent to the plans `makers`: row n to the n-th."""

    def __init__(self, size: int, allocate: Allocate, makers: Container[RowMaker]) -> None:
        self.makers = makers
        self._size = size
        self._allocate = allocate
        # An array for the batch, and the rows of it that were handed out.
        self._columns: dict[Key, tuple[Array, list[Array]]] = {}
        self._row = -1
        self._asked = 0

    def offered(self) -> AbstractContextManager[None]:
        """Inside, where the batch is read, its makers have rows."""
        return _set("offered", self)

    def turns(self, calls: Iterable[Any]) -> Generator[Any]:
        """The same; each turn is another datapoint."""
        for call in calls:
            self._row += 1
            self._asked = 0
            yield call

    def empty(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> Array:
        sides = (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(shape)
        key = (self._asked, sides, np.dtype(dtype))
        self._asked += 1
        if self._row == 0:
            self._columns[key] = self._allocate((self._size, *sides), dtype), []
        if key not in self._columns or self._row >= self._size:
            return np.empty(shape, dtype)
        data, handed = self._columns[key]
        row = data[self._row, ...]
        handed.append(row)
        return row

    def whole(self, arrays: Sequence[Array]) -> Array | None:
        """The array whose rows these arrays are, all and in order. It is not given away twice."""
        for key, (data, handed) in self._columns.items():
            # A row's own shape and dtype can be set, which does not change what it is a row of.
            fits = (arrays[0].shape, arrays[0].dtype) == (data.shape[1:], data.dtype)
            if not fits or not len(handed) == len(data) == len(arrays):
                continue
            if all(map(_same, handed, arrays)):
                del self._columns[key]
                return data
        return None


def _same(row: Array, array: Array) -> bool:
    """Test whether an array has the memory of a row, in its order; also as another view."""
    here = array is row or address_of(array) == address_of(row)
    return here and array.flags.c_contiguous


class RowMaker:
    """Mixed into plans that make datapoints one at a time, for the memory that is lent for them."""

    def make(self, f: Callable[..., Result], calls: Iterable[tuple[Any, ...]]) -> list[Result]:
        """Call a function for each datapoint; `empty_row` is a row of the batch above, if any."""
        lender = _ROWS.offered
        if lender is None or self not in lender.makers:
            return without_rows(lambda: list(starmap(f, calls)))
        before, _ROWS.making = _ROWS.making, lender  # not `_set`: this is for each batch
        try:
            return list(starmap(f, lender.turns(calls)))
        finally:
            _ROWS.making = before


def without_rows(f: Callable[..., Result], *arguments: Any) -> Result:
    """Call a map's function, which may read other pipelines: they make no rows of the batch."""
    if _ROWS.making is None:
        return f(*arguments)
    with _set("making", None):
        return f(*arguments)
