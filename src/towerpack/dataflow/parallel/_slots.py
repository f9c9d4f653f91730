"""Memory that processes share: nameless files, and slots in one of them that are used again.

Nothing has a name, so nothing is left behind, whoever dies; `/dev/shm` and its limit have no part
in it. Memory is reserved when it is made: without room that is an error, and no SIGBUS later.
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
    """A descriptor of an empty file in memory; on systems without, of an unlinked one on disk."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(f"towerpack-{name}")
    fd, path = tempfile.mkstemp(prefix="towerpack-")
    os.unlink(path)
    return fd


def reserve(fd: int, offset: int, nbytes: int) -> None:
    """Make sure that a file has memory from `offset` on; a `DataFlowError` if there is none."""
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, offset, nbytes)
        else:
            os.ftruncate(fd, offset + nbytes)
    except OSError as error:
        raise DataFlowError(
            f"There is no memory for another {nbytes:,} bytes that workers share: {error}.",
            fix="fewer workers, a smaller num_prefetch, or smaller batches",
        ) from error


def reserved_file(name: str, nbytes: int) -> tuple[int, int]:
    """A descriptor of a file in memory of at least so many bytes, and how many there are."""
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
    """Memory that is lent: whoever holds arrays over it is alone with them until they are gone."""


def map_shared(fd: int, nbytes: int, offset: int = 0) -> SlotMemory:
    """Map a part of a file, with its pages at hand where the system can do that."""
    flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
    return SlotMemory(fd, nbytes, flags=flags, offset=offset)


def bases_of(array: Any) -> Iterator[object]:
    """An array, and one after another what its memory is of."""
    while array is not None:
        yield array
        array = array.obj if isinstance(array, memoryview) else getattr(array, "base", None)


def is_lent(array: object) -> bool:
    """Whether the memory of an array is a slot of a parallel stage, and so its holder's alone.

    It may then be handed on without a copy, as long as what it is handed to keeps the array.
    """
    return any(isinstance(one, SlotMemory) for one in bases_of(array))


@dataclass(eq=False)
class Slot:
    """Memory for one unit of work, and where it lies in the file of the slots, if it does."""

    offset: int | None
    nbytes: int
    memory: SlotMemory

    def bytes(self) -> Bytes:
        """A new array over the slot, which every array over a part of it keeps alive."""
        return np.frombuffer(self.memory, np.uint8)


class SlotPool:
    """Slots in a file that worker processes map, or, unless `shared`, in memory of this process."""

    def __init__(self, *, shared: bool) -> None:
        self.fd = memory_file("slots") if shared else -1
        self._end = 0
        self._free: list[Slot] = []
        # Finalisers run anywhere, at any time: all that they do is one append.
        self._returned: deque[Slot] = deque()
        self._lent = self._lent_bytes = 0
        self.wanted = _SMALLEST
        self.total_bytes = 0

    def take(self, nbytes: int = 0) -> Slot:
        """A slot of at least `nbytes`, and of the size that units have been found to need."""
        self._collect()
        wanted = max(self.wanted, whole_pages(nbytes))
        while self._free:
            slot = self._free.pop()
            if slot.nbytes >= wanted:
                return slot
            self._drop(slot)
        if self.fd < 0:
            memory = SlotMemory(-1, wanted)
        else:
            reserve(self.fd, self._end, wanted)
            memory = map_shared(self.fd, wanted, self._end)
        slot = Slot(self._end, wanted, memory)
        self.wanted = wanted
        self._end += wanted
        self.total_bytes += wanted
        return slot

    def adopt(self, fd: int) -> Slot:
        """Take over a file that a worker made for a result that was too large for its slot."""
        nbytes = os.fstat(fd).st_size
        memory = map_shared(fd, nbytes)
        os.close(fd)
        self.expect(nbytes + nbytes // 8)
        self.total_bytes += nbytes
        return Slot(None, nbytes, memory)

    def expect(self, nbytes: int) -> None:
        """Have slots of at least this size from now on: units have been found to need it."""
        self.wanted = max(self.wanted, whole_pages(nbytes))

    def give_back(self, slot: Slot) -> None:
        if slot.offset is None:
            self.total_bytes -= slot.nbytes
        else:
            self._free.append(slot)

    def lend(self, slot: Slot) -> Bytes:
        """The slot's bytes; it comes back when nothing made of them is left."""
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
        if self.fd >= 0 and hasattr(mmap, "MADV_REMOVE"):  # gives back pages that the file holds
            slot.memory.madvise(mmap.MADV_REMOVE)


def buffer_address(data: Any) -> int:
    return address_of(np.frombuffer(data, np.uint8))
