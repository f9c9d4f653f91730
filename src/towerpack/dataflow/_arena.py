"""Arenas: memory that a parallel stage lends to each unit of work, for the arrays of its result.

What makes the last arrays of a plan (a stack, a gather) asks `lent_empty` for memory; without an
arena that is `numpy.empty`. Functions of the user never get an arena's memory unasked: they might
keep it, and the memory is used again.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

Array = NDArray[Any]
Allocate = Callable[[tuple[int, ...], DTypeLike], Array]

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
    return array.__array_interface__["data"][0]


def aligned(offset: int, nbytes: int) -> int:
    """Return the first offset, at or after the given one, for an array of `nbytes`."""
    align = _PAGE if nbytes >= _LARGE else _ALIGN
    return -(-offset // align) * align


class _Lent(threading.local):
    arena: Arena | None = None


_LENT = _Lent()


def lent_empty(shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """`numpy.empty`, in the arena that was lent to this thread, if any."""
    arena = _LENT.arena
    return np.empty(shape, dtype) if arena is None else arena.empty(shape, dtype)


@contextmanager
def lend(arena: Arena | None) -> Generator[None]:
    """Let `lent_empty` of this thread use an arena."""
    before, _LENT.arena = _LENT.arena, arena
    try:
        yield
    finally:
        _LENT.arena = before
