"""Jobs for worker processes, pickled once. Large arrays are in shared memory or mapped files."""

from __future__ import annotations

import mmap
import os
import pickle
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from towerpack.dataflow._arena import aligned
from towerpack.dataflow.parallel._pickles_and_errors import dump_code, dump_each, load
from towerpack.dataflow.parallel._slots import bases_of, buffer_address, reserved_file
from towerpack.dataflow.sources._memory import SENDER, Sender

_IN_MEMORY = 1 << 15
_LONG = 1024


class Piece(NamedTuple):
    file: str | int  # path, or index of a descriptor that is sent along
    start: int
    nbytes: int
    readonly: bool


class SharedMap(mmap.mmap):
    """Memory that workers can map by its file descriptor."""

    fd: int

    @classmethod
    def make(cls, nbytes: int) -> SharedMap:
        fd, nbytes = reserved_file("data", nbytes)
        shared = cls(fd, nbytes)
        shared.fd = fd
        weakref.finalize(shared, os.close, fd)
        return shared


def owner_of(array: object) -> np.memmap[Any, Any] | SharedMap | None:
    """Return the mapped file that contains the memory of an array, if any."""
    for base in bases_of(array):
        if isinstance(base, SharedMap):
            return base
        if isinstance(base, np.memmap):
            mapped = cast("np.memmap[Any, Any]", base)
            # A private mapping may differ from its file.
            return mapped if mapped.filename is not None and mapped.mode != "c" else None
    return None


class ToShared(Sender):
    def shared(self, array: NDArray[Any]) -> NDArray[Any]:
        if array.nbytes < _IN_MEMORY or array.dtype.hasobject or owner_of(array) is not None:
            return array
        shared: NDArray[Any] = np.ndarray(array.shape, array.dtype, SharedMap.make(array.nbytes))
        shared[...] = array
        return shared

    def flat(self, items: Sequence[Any]) -> Sequence[Any]:
        plain = isinstance(items, (list, tuple))
        return FlatList(items) if plain and len(items) >= _LONG else items


class FlatList(Sequence[Any]):
    """List whose items are pickled into one array, so that reading items copies no memory pages."""

    def __init__(self, items: Sequence[Any]) -> None:
        pickles, ends = dump_each(items)
        self._ends = np.array(ends, np.int64)
        self._bytes = np.frombuffer(pickles, np.uint8)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: Any) -> Any:
        end = int(self._ends[index])
        start = int(self._ends[index - 1]) if index % len(self._ends) else 0
        return load(memoryview(cast("Any", self._bytes))[start:end])


class PickledJob:
    def __init__(self, job: object) -> None:
        self.pieces: list[Piece] = []
        """Memory of the arrays, followed by the memory of the pickle."""
        self.fds: list[int] = []
        self._keep_alive: list[object] = []
        self._loose: list[tuple[int, memoryview]] = []
        self._end = 0
        token = SENDER.set(ToShared())
        try:
            data = dump_code(job, self._keep)
        finally:
            SENDER.reset(token)
        self._put(memoryview(data).toreadonly())
        shared = SharedMap.make(self._end)
        for start, view in self._loose:
            shared[start : start + view.nbytes] = view
        self._loose.clear()
        self._keep_alive.append(shared)
        self.fds.insert(0, shared.fd)

    def _put(self, view: memoryview) -> None:
        start = aligned(self._end, view.nbytes)
        self._end = start + view.nbytes
        self._loose.append((start, view))
        self.pieces.append(Piece(0, start, view.nbytes, view.readonly))

    def _keep(self, buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if view.nbytes < _IN_MEMORY:
            return True
        owner = owner_of(memoryview(buffer))
        if owner is None:
            self._put(view)
            return False
        # Descriptors are closed with their memory, but workers that start later need them too.
        self._keep_alive.append(owner)
        if isinstance(owner, SharedMap):
            if owner.fd not in self.fds:
                self.fds.append(owner.fd)
            file = 1 + self.fds.index(owner.fd)
            start = buffer_address(view) - buffer_address(owner)
        else:
            file = os.path.abspath(str(owner.filename))
            start = buffer_address(view) - buffer_address(owner._mmap)  # pyright: ignore
            start += owner.offset - owner.offset % mmap.ALLOCATIONGRANULARITY
        self.pieces.append(Piece(file, start, view.nbytes, view.readonly))
        return False


def load_job(pieces: Sequence[Piece], fds: Sequence[int]) -> Any:
    maps: dict[str | int, mmap.mmap] = {}
    try:
        *views, data = [_view(piece, maps, fds) for piece in pieces]
    finally:
        for fd in fds:
            os.close(fd)
    return load(data, views)


def _view(piece: Piece, maps: dict[str | int, mmap.mmap], fds: Sequence[int]) -> memoryview:
    file, start, nbytes, readonly = piece
    if file not in maps:
        sent = isinstance(file, int)
        with open(fds[file] if sent else file, "rb", closefd=not sent) as opened:
            maps[file] = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)
    view = memoryview(maps[file])[start : start + nbytes]
    return view.toreadonly() if readonly else view
