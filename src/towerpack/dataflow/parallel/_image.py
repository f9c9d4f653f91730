"""A job as it travels to worker processes: pickled once, its arrays in memory that all share.

Large arrays are not sent to each worker. They lie in one file in memory that every worker maps;
those of a `numpy.memmap` stay in their file. Workers map privately: what they write into an array
is theirs, as it would be with an array that was sent.
"""

from __future__ import annotations

import mmap
import os
import pickle
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import DataFlowError
from towerpack.dataflow._memory import aligned
from towerpack.dataflow.parallel._memory import buffer_address, memory_file, reserve, whole_pages
from towerpack.dataflow.parallel._pickling import dump_code, dump_each, load
from towerpack.dataflow.sources._memory import SENDER, Sender

_IN_MEMORY = 1 << 15
_LONG = 1024


class Piece(NamedTuple):
    """Where the memory of one array is found.

    Attributes:
        file: A path, or the place of a descriptor among those sent.
        start: In the file.
        nbytes: Its size.
        readonly: Whether the array could be written to.
    """

    file: str | int
    start: int
    nbytes: int
    readonly: bool


class SharedMap(mmap.mmap):
    """Memory of this process that workers can map too, by its descriptor."""

    fd: int

    @classmethod
    def make(cls, nbytes: int) -> SharedMap:
        """New memory."""
        fd = memory_file("data")
        reserve(fd, 0, whole_pages(nbytes))
        made = cls(fd, whole_pages(nbytes))
        made.fd = fd
        weakref.finalize(made, os.close, fd)
        return made


def in_shared_memory(array: NDArray[Any]) -> NDArray[Any]:
    """The array, in memory that workers can map; itself, if it is small, or mapped already."""
    if array.nbytes < _IN_MEMORY or array.dtype.hasobject or owner_of(array) is not None:
        return array
    memory = SharedMap.make(array.nbytes)
    shared: NDArray[Any] = np.ndarray(array.shape, array.dtype, memory)
    shared[...] = array
    return shared


def owner_of(array: object) -> np.memmap[Any, Any] | SharedMap | None:
    """The mapped file that the memory of an array belongs to, if any."""
    while array is not None:
        if isinstance(array, SharedMap):
            return array
        if isinstance(array, np.memmap):
            mapped = cast("np.memmap[Any, Any]", array)
            # A private mapping may differ from its file.
            return mapped if mapped.filename is not None and mapped.mode != "c" else None
        if isinstance(array, memoryview):
            array = array.obj
        else:
            array = getattr(array, "base", None)
    return None


class ToShared(Sender):
    """Puts data where workers can map them."""

    def shared(self, array: NDArray[Any]) -> NDArray[Any]:
        return in_shared_memory(array)

    def flat(self, items: Sequence[Any]) -> Sequence[Any]:
        plain = isinstance(items, (list, tuple))
        return FlatList(items) if plain and len(items) >= _LONG else items


class FlatList(Sequence[Any]):
    """A list as one array of bytes, from which items are made when they are asked for.

    A million objects would be copied, page by page, into every process that only counts
    references to them.

    Args:
        items: Anything that pickles.
    """

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


class JobImage:
    """A pickled job, kept while workers may ask for it.

    Args:
        job: Pickled by cloudpickle.

    Raises:
        Exception: Whatever a member raises that does not pickle.
    """

    def __init__(self, job: object) -> None:
        self.pieces: list[Piece] = []
        self.fds: list[int] = []
        self._keep_alive: list[object] = []
        self._loose: list[tuple[int, memoryview]] = []
        token = SENDER.set(ToShared())
        try:
            data = dump_code(job, self._keep)
        finally:
            SENDER.reset(token)
        self._write(data)

    def _keep(self, buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if view.nbytes < _IN_MEMORY:
            return True
        owner = owner_of(memoryview(buffer))
        # Descriptors are closed with their memory: workers that start later need them too.
        self._keep_alive.append(owner)
        if owner is None:
            self._loose.append((len(self.pieces), view))
            self.pieces.append(Piece(0, 0, view.nbytes, view.readonly))
        elif isinstance(owner, SharedMap):
            if owner.fd not in self.fds:
                self.fds.append(owner.fd)
            start = buffer_address(view) - buffer_address(owner)
            place = 1 + self.fds.index(owner.fd)
            self.pieces.append(Piece(place, start, view.nbytes, view.readonly))
        else:
            start = buffer_address(view) - buffer_address(owner._mmap)  # pyright: ignore
            start += owner.offset - owner.offset % mmap.ALLOCATIONGRANULARITY
            path = os.path.abspath(str(owner.filename))
            self.pieces.append(Piece(path, start, view.nbytes, view.readonly))
        return False

    def _write(self, data: bytes) -> None:
        end = len(data)
        for number, view in self._loose:
            start = aligned(end, view.nbytes)
            self.pieces[number] = self.pieces[number]._replace(start=start)
            end = start + view.nbytes
        own = SharedMap.make(end)
        own[: len(data)] = data
        for number, view in self._loose:
            start = self.pieces[number].start
            own[start : start + view.nbytes] = view
        self._keep_alive.append(own)
        self._loose.clear()
        self.fds.insert(0, own.fd)
        self.message = (len(data), self.pieces)


def load_image(nbytes: int, pieces: Sequence[Piece], fds: Sequence[int]) -> Any:
    """The job, in a worker.

    Raises:
        DataFlowError: A file that an array was mapped from has changed.
    """
    maps: dict[str | int, mmap.mmap] = {}
    try:
        views = [_view(piece, maps, fds) for piece in pieces]
        own = memoryview(mmap.mmap(fds[0], 0, access=mmap.ACCESS_READ))
    finally:
        for fd in fds:
            os.close(fd)
    return load(own[:nbytes], views)


def _view(piece: Piece, maps: dict[str | int, mmap.mmap], fds: Sequence[int]) -> memoryview:
    if piece.file not in maps:
        maps[piece.file] = _map(piece.file, fds)
    mapped = maps[piece.file]
    if len(mapped) < piece.start + piece.nbytes:
        raise DataFlowError(
            f"{piece.file} has shrunk since it was mapped.",
            got=f"{len(mapped):,} bytes",
            expected=f"at least {piece.start + piece.nbytes:,}",
        )
    view = memoryview(mapped)[piece.start : piece.start + piece.nbytes]
    return view.toreadonly() if piece.readonly else view


def _map(file: str | int, fds: Sequence[int]) -> mmap.mmap:
    if isinstance(file, int):
        return mmap.mmap(fds[file], 0, access=mmap.ACCESS_COPY)
    with open(file, "rb") as opened:
        return mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)
