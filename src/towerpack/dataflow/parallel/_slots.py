"""Shared memory of processes: anonymous files, and a file of reusable blocks called slots.

Anonymous files leave nothing behind when a process dies and do not depend on `/dev/shm`. Memory is
reserved when a file grows, so that a lack of memory is an error and not a later SIGBUS.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import DataFlowError
from towerpack.dataflow._arena import address_of

Bytes = NDArray[np.uint8]

_PAGE = mmap.ALLOCATIONGRANULARITY
_SMALLEST = 1 << 16


def memory_file(name: str) -> int:
    """Create an empty file in memory, or an unlinked file on disk. Return its descriptor."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(f"towerpack-{name}")
    fd, path = tempfile.mkstemp(prefix="towerpack-")
    os.unlink(path)
    return fd


def reserve(fd: int, offset: int, nbytes: int) -> None:
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, offset, nbytes)
        else:
            os.ftruncate(fd, offset + nbytes)
    except OSError as error:
        raise DataFlowError(
            f"Shared memory of {nbytes:,} bytes cannot be reserved: {error}.",
            fix="use fewer workers, a smaller num_prefetch, or smaller batches",
        ) from error


def reserved_file(name: str, nbytes: int) -> tuple[int, int]:
    """Create a file in memory of at least `nbytes` bytes. Return its descriptor and size."""
    fd, nbytes = memory_file(name), whole_pages(nbytes)
    try:
        reserve(fd, 0, nbytes)
    except BaseException:
        os.close(fd)
        raise
    return fd, nbytes


def whole_pages(nbytes: int) -> int:
    return -(-max(nbytes, 1) // _PAGE) * _PAGE


class SlotMemory(mmap.mmap):
    """Memory of a slot, which is not reused while arrays refer to it."""


def map_shared(fd: int, nbytes: int, offset: int = 0) -> SlotMemory:
    """Map a part of a file to memory. Load its pages if the system supports that."""
    flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
    return SlotMemory(fd, nbytes, flags=flags, offset=offset)


def bases_of(array: Any) -> Iterator[object]:
    while array is not None:
        yield array
        array = array.obj if isinstance(array, memoryview) else getattr(array, "base", None)


def is_lent(array: object) -> bool:
    """Return whether the memory of an array belongs to a parallel stage, which will reuse it.

    Such memory can be used without a copy while a reference to the array exists.

    Args:
        array: NumPy array or another object with memory.
    """
    return any(isinstance(base, SlotMemory) for base in bases_of(array))


@dataclass(eq=False)
class Slot:
    offset: int | None  # in the file of the slots, unless the slot has its own file
    nbytes: int
    memory: SlotMemory

    def bytes(self) -> Bytes:
        return np.frombuffer(self.memory, np.uint8)


class SlotPool:
    """Pool of slots in a file for worker processes, or in memory if not `shared`."""

    def __init__(self, *, shared: bool) -> None:
        self.fd = memory_file("slots") if shared else -1
        self._end = 0
        self._free: list[Slot] = []
        # Finalizers run in any thread at any time, so all that they do is one append.
        self._returned: deque[Slot] = deque()
        self._lent = self._lent_bytes = 0
        self.wanted = _SMALLEST
        self.total_bytes = 0

    def take(self, nbytes: int = 0) -> Slot:
        self._collect()
        size = max(self.wanted, whole_pages(nbytes))
        while self._free:
            slot = self._free.pop()
            if slot.nbytes >= size:
                return slot
            self._drop(slot)
        if self.fd < 0:
            memory = SlotMemory(-1, size)
        else:
            reserve(self.fd, self._end, size)
            memory = map_shared(self.fd, size, self._end)
        slot = Slot(self._end, size, memory)
        self.wanted = size
        self._end += size
        self.total_bytes += size
        return slot

    def adopt(self, fd: int) -> Slot:
        """Take over the file that a worker created for a result too large for its slot."""
        nbytes = os.fstat(fd).st_size
        memory = map_shared(fd, nbytes)
        os.close(fd)
        self.expect(nbytes + nbytes // 8)
        self.total_bytes += nbytes
        return Slot(None, nbytes, memory)

    def expect(self, nbytes: int) -> None:
        self.wanted = max(self.wanted, whole_pages(nbytes))

    def give_back(self, slot: Slot) -> None:
        if slot.offset is None:
            self.total_bytes -= slot.nbytes
        else:
            self._free.append(slot)

    def lend(self, slot: Slot) -> Bytes:
        """Return a slot's bytes. The slot becomes free when no array refers to them."""
        anchor = slot.bytes()
        self._lent += 1
        self._lent_bytes += slot.nbytes
        weakref.finalize(anchor, self._returned.append, slot).atexit = False
        return anchor

    @property
    def lent(self) -> tuple[int, int]:
        self._collect()
        return self._lent, self._lent_bytes

    def trim(self, keep: int) -> None:
        self._collect()
        while len(self._free) > keep:
            self._drop(self._free.pop(0))

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        self._free.clear()

    def _collect(self) -> None:
        while self._returned:
            slot = self._returned.popleft()
            self._lent -= 1
            self._lent_bytes -= slot.nbytes
            self.give_back(slot)

    def _drop(self, slot: Slot) -> None:
        self.total_bytes -= slot.nbytes
        if self.fd >= 0 and hasattr(mmap, "MADV_REMOVE"):  # frees the pages of the file
            slot.memory.madvise(mmap.MADV_REMOVE)


def buffer_address(data: Any) -> int:
    return address_of(np.frombuffer(data, np.uint8))
