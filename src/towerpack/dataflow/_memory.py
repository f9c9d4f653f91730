"""Memory that batches are written into once, in place.

Arena: parallel stages lend each unit of work memory into which arrays are laid one after another.
What makes the last arrays of a plan (a stack, a gather) asks `lent_empty` for them; without an
arena that is `numpy.empty`. Code of the user's never gets an arena's memory unasked: it might keep
it, and the memory is used again.

Rows: a batch offers its rows to the maps directly below it. What such a map asks for with
`empty_row` is a row of an array for the whole batch; if the stack then finds all of an array's rows
in its hands, in order, it takes that array as it is. In any other case it copies.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Container, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import starmap
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

Array = NDArray[Any]
Allocate = Callable[[tuple[int, ...], DTypeLike], Array]
Result = TypeVar("Result")
Key = tuple[int, tuple[int, ...], np.dtype[Any]]
"""How often a datapoint had asked for a row before; shape and dtype of the row."""

# Frameworks take over memory without a copy where it is aligned: 64 bytes do, pages are best.
_ALIGN = 64
_PAGE = 4096
_LARGE = 1 << 16


class Arena:
    """Lay arrays into memory that is aligned to a page; its first bytes may be `used`."""

    def __init__(self, memory: NDArray[np.uint8], used: int = 0) -> None:
        self._memory = memory
        self._begin = address_of(memory)
        self._used = used
        self.missed = 0
        """Bytes that were asked for and did not fit."""

    @property
    def needed(self) -> int:
        """Bytes of an arena in which all would have had room."""
        return self._used + self.missed

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """An array in the arena, or elsewhere if it does not fit."""
        kind = np.dtype(dtype)
        nbytes = math.prod(shape) * kind.itemsize
        if nbytes == 0 or kind.hasobject:
            return np.empty(shape, kind)
        start = self._place(nbytes)
        if start is None:
            self.missed += nbytes + _PAGE
            return np.empty(shape, kind)
        return np.ndarray(shape, kind, self._memory, start)

    def put(self, data: memoryview | bytes) -> int | None:
        """Copy bytes in, unless they lie there already. Where they lie; `None` without room."""
        source = np.frombuffer(data, np.uint8)
        start = address_of(source) - self._begin
        if 0 <= start < self._memory.nbytes:
            return start
        placed = self._place(source.nbytes)
        if placed is not None:
            self._memory[placed : placed + source.nbytes] = source
        return placed

    def _place(self, nbytes: int) -> int | None:
        start = aligned(self._used, nbytes)
        if start + nbytes > self._memory.nbytes:
            return None
        self._used = start + nbytes
        return start


def address_of(array: Array) -> int:
    """Where an array begins in memory."""
    return array.__array_interface__["data"][0]


def aligned(offset: int, nbytes: int) -> int:
    """Where something of `nbytes` may begin at or after an offset."""
    align = _PAGE if nbytes >= _LARGE else _ALIGN
    return -(-offset // align) * align


class _Here(threading.local):
    arena: Arena | None = None
    """For the arrays of the unit of work that is made."""
    offered: RowLender | None = None
    """By the batch that is being read, for the maps below it."""
    making: RowLender | None = None
    """For the datapoint that is being made."""


_HERE = _Here()


def lent_empty(shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """`numpy.empty`, in the arena that this thread was lent, if any."""
    arena = _HERE.arena
    return np.empty(shape, dtype) if arena is None else arena.empty(shape, dtype)


@contextmanager
def _here(name: str, value: Arena | RowLender | None) -> Generator[None]:
    """Inside, something of this thread is another one."""
    before = getattr(_HERE, name)
    setattr(_HERE, name, value)
    try:
        yield
    finally:
        setattr(_HERE, name, before)


def lend(arena: Arena | None) -> AbstractContextManager[None]:
    """Inside, `lent_empty` of this thread uses an arena."""
    return _here("arena", arena)


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
    lender = _HERE.making
    return np.empty(shape, dtype) if lender is None else lender.empty(shape, dtype)


class RowLender:
    """The rows of one batch of `size` datapoints, lent to the plans `makers`.

    The n-th datapoint that is made gets row n of whatever it asks for, so that no row is handed out
    twice, whoever makes datapoints in whichever order.
    """

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
        return _here("offered", self)

    def turns(self, calls: Iterable[Any]) -> Generator[Any]:
        """The same; each turn is another datapoint."""
        for call in calls:
            self._row += 1
            self._asked = 0
            yield call

    def empty(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> Array:
        """A row for the datapoint that is being made."""
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
        lender = _HERE.offered
        if lender is None or self not in lender.makers:
            return without_rows(lambda: list(starmap(f, calls)))
        before, _HERE.making = _HERE.making, lender  # not `_here`: this is for each batch
        try:
            return list(starmap(f, lender.turns(calls)))
        finally:
            _HERE.making = before


def without_rows(f: Callable[..., Result], *arguments: Any) -> Result:
    """Call a map's function, which may read other pipelines: they make no rows of the batch."""
    if _HERE.making is None:
        return f(*arguments)
    with _here("making", None):
        return f(*arguments)
