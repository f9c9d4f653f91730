"""Arenas: memory in which a parallel stage places the arrays of one unit of work."""

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

# Frameworks use aligned memory without a copy: 64 bytes are enough, pages are best.
_ALIGN = 64
_PAGE = 4096
_LARGE = 1 << 16


class Arena:
    """Allocator in page-aligned memory, whose first `used` bytes are occupied."""

    def __init__(self, memory: NDArray[np.uint8], used: int = 0) -> None:
        self._memory = memory
        self._begin = address_of(memory)
        self._used = used
        self.missed = 0
        """Requested bytes that did not fit."""

    @property
    def needed(self) -> int:
        return self._used + self.missed

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """Allocate an array in the arena, or in new memory if it does not fit."""
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
        """Copy bytes into the arena. Return their offset, or `None` if they do not fit."""
        source = np.frombuffer(data, np.uint8)
        start = address_of(source) - self._begin
        if 0 <= start < self._memory.nbytes:
            return start
        position = self._place(source.nbytes)
        if position is not None:
            self._memory[position : position + source.nbytes] = source
        return position

    def _place(self, nbytes: int) -> int | None:
        start = aligned(self._used, nbytes)
        if start + nbytes > self._memory.nbytes:
            return None
        self._used = start + nbytes
        return start


def address_of(array: Array) -> int:
    return array.__array_interface__["data"][0]


def aligned(offset: int, nbytes: int) -> int:
    align = _PAGE if nbytes >= _LARGE else _ALIGN
    return -(-offset // align) * align


class _Lent(threading.local):
    arena: Arena | None = None


_LENT = _Lent()


def lent_empty(shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """Allocate an array like `numpy.empty`, in the arena of this thread if it has one."""
    arena = _LENT.arena
    return np.empty(shape, dtype) if arena is None else arena.empty(shape, dtype)


@contextmanager
def lend(arena: Arena | None) -> Generator[None]:
    """Make `lent_empty` use an arena within this thread and the `with` block."""
    before, _LENT.arena = _LENT.arena, arena
    try:
        yield
    finally:
        _LENT.arena = before
