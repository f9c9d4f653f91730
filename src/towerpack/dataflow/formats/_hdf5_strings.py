"""Strings of variable length in HDF5 files, read without the HDF5 library.

The library finds everything else in a file, and survives damage there. Here it does not: of 1,600
files with wrong bits in their strings it looped for ever over 12. Reading them is simple, as every
offset and size can be compared with the file's, and in random order faster than the library is.

    row          length of a string, address of a collection, number of an object in it
    collection   "GCOL", its size, then objects: number, size, bytes; number 0 is what is free
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import FormatError
from towerpack.dataflow._opening import OpenFile

_ELEMENT: Final = struct.Struct("<IQI")
_COLLECTION: Final = struct.Struct("<4sB3xQ")
_OBJECT: Final = struct.Struct("<HH4xQ")
_NOWHERE: Final = (1 << 64) - 1
_KEPT_CHUNK_BYTES: Final = 16 << 20
_KEPT_COLLECTIONS: Final = 256
_LARGEST_KEPT: Final = 1 << 16  # that of more than one string
_DEFLATE, _SHUFFLE = 1, 2

Objects = dict[int, tuple[int, int]]
"""Where each object of a collection begins and ends."""


def string_rows(h5py: Any, data: Any, path: Path) -> StringRows | None:
    """Reads a data set of strings of variable length.

    Args:
        h5py: The module.
        data: The data set, of a file that is open.
        path: The file.

    Returns:
        `None` if it is of another type, or stored in a way that only the library knows.

    Raises:
        FormatError: The file is damaged.
    """
    text = h5py.check_string_dtype(data.dtype)
    properties = data.id.get_create_plist()
    whole_file = data.file.id.get_create_plist()
    if (
        text is None
        or text.length is not None
        or (properties.fill_value_defined() == h5py.h5d.FILL_VALUE_USER_DEFINED)
        or (whole_file.get_sizes(), whole_file.get_userblock()) != ((8, 8), 0)
    ):
        return None
    source = _File(path)
    elements = _elements(h5py, data, source, _ELEMENT.size * math.prod(data.shape[1:]))
    return None if elements is None else StringRows(source, elements, data.shape, text.encoding)


def _elements(h5py: Any, data: Any, file: _File, row_bytes: int) -> Elements | None:
    properties = data.id.get_create_plist()
    layout = properties.get_layout()
    if layout == h5py.h5d.CONTIGUOUS:
        return OneBlock(file, data.id.get_offset(), row_bytes)
    filters = [properties.get_filter(i)[0] for i in range(properties.get_nfilters())]
    known = {_DEFLATE, _SHUFFLE}.issuperset(filters)
    if layout != h5py.h5d.CHUNKED or not known or data.chunks[1:] != data.shape[1:]:
        return None
    chunk_rows = data.chunks[0]
    places = _places(data.id, -(-len(data) // chunk_rows), chunk_rows)
    return Chunks(file, places, chunk_rows, row_bytes, filters)


def _places(data_id: Any, count: int, chunk_rows: int) -> NDArray[np.uint64]:
    """Offset, size and left out filters of each chunk."""
    places = np.zeros((count, 3), np.uint64)
    seen = 0

    def note(chunk: Any) -> bool | None:
        nonlocal seen
        seen += 1
        number, rest = divmod(chunk.chunk_offset[0], chunk_rows)
        if rest or number >= count or seen > count or chunk.byte_offset is None:
            return True  # which ends it
        places[number] = chunk.byte_offset, chunk.size, chunk.filter_mask
        return None

    data_id.chunk_iter(note)
    return places


class StringRows:
    """A data set of strings; reads like `_hdf5.DataSet`. Safe to use from several threads.

    Args:
        file: The file.
        elements: Where its rows are.
        shape: Rows, and what each of them is; (n,) for one string in each.
        encoding: Of the strings.
    """

    def __init__(
        self, file: _File, elements: Elements, shape: tuple[int, ...], encoding: str
    ) -> None:
        self.size, *row_shape = shape
        self.row_bytes = _ELEMENT.size * math.prod(row_shape)
        self._file = file
        self._heap = _Heap(file)
        self._elements = elements
        self._row_shape = row_shape
        self._encoding = encoding

    def read(self, runs: Sequence[tuple[int, int]]) -> NDArray[Any]:
        """The rows of some ranges, one after another, as objects.

        Raises:
            FormatError: The file is damaged.
        """
        raw = b"".join(self._elements.rows(start, stop) for start, stop in runs)
        count = sum(stop - start for start, stop in runs)
        if len(raw) != count * self.row_bytes:
            raise self._file.damaged("rows are missing")
        # No two rows share a string, so together they cannot be larger than the file.
        left = self._file.nbytes
        found: list[str] = []
        for nbytes, address, number in _ELEMENT.iter_unpack(raw):
            left -= nbytes
            if left < 0:
                raise self._file.damaged("its strings are larger than the file")
            found.append(self._heap.get(nbytes, address, number).decode(self._encoding))
        out = np.empty(len(found), object)
        out[:] = found
        return out.reshape(count, *self._row_shape)


class Elements(Protocol):
    """Where the rows of a data set are."""

    def rows(self, start: int, stop: int) -> bytes:
        """What a range of rows holds: a few bytes for each string."""
        ...


class OneBlock:
    """Rows that lie one after another.

    Args:
        file: The file.
        offset: Of the first row; `None` if none was written.
        row_bytes: Of each.
    """

    def __init__(self, file: _File, offset: int | None, row_bytes: int) -> None:
        self._file = file
        self._offset = offset
        self._row_bytes = row_bytes

    def rows(self, start: int, stop: int) -> bytes:
        """What a range of rows holds."""
        size = self._row_bytes
        if self._offset is None:
            return bytes((stop - start) * size)
        return self._file.part(self._offset + start * size, (stop - start) * size)


class Chunks:
    """Rows in chunks, as they are or compressed.

    Args:
        file: The file.
        places: Offset, size and left out filters of each chunk; sizes of 0 are chunks not written.
        chunk_rows: Rows in each.
        row_bytes: Of each row.
        filters: What was done to a chunk when it was written, in order.
    """

    def __init__(
        self,
        file: _File,
        places: NDArray[np.uint64],
        chunk_rows: int,
        row_bytes: int,
        filters: list[int],
    ) -> None:
        self._file = file
        self._places = places
        self._chunk_rows = chunk_rows
        self._row_bytes = row_bytes
        self._filters = filters
        self._kept: dict[int, bytes] = {}
        self._chunk_bytes = chunk_rows * row_bytes
        self._most_kept = _KEPT_CHUNK_BYTES // self._chunk_bytes

    def rows(self, start: int, stop: int) -> bytes:
        """What a range of rows holds."""
        rows, size = self._chunk_rows, self._row_bytes
        parts: list[bytes] = []
        for number in range(start // rows, -(-stop // rows)):
            low, high = max(start - number * rows, 0), min(stop - number * rows, rows)
            if self._places[number, 1] == 0:
                parts.append(bytes((high - low) * size))
            else:
                parts.append(self._chunk(number)[low * size : high * size])
        return b"".join(parts)

    def _chunk(self, number: int) -> bytes:
        chunk = self._kept.get(number)
        if chunk is None:
            chunk = self._read(number)
            if len(self._kept) >= self._most_kept:
                self._kept.clear()
            self._kept[number] = chunk
        return chunk

    def _read(self, number: int) -> bytes:
        offset, nbytes, left_out = self._places[number].tolist()
        data = self._file.part(offset, nbytes)
        for place, kind in reversed(list(enumerate(self._filters))):
            if left_out >> place & 1:
                continue
            if kind == _SHUFFLE:
                # HDF5 lists it for strings if it was asked for, and never does it to them.
                raise self._file.damaged(f"the chunk at {offset:,} is shuffled")
            # Not a byte more than there should be, whatever the chunk makes of itself.
            data = zlib.decompressobj().decompress(data, self._chunk_bytes)
        return data


class _File:
    """A file, read in parts that lie in it."""

    def __init__(self, path: Path) -> None:
        self.nbytes = path.stat().st_size
        self._path = path
        self._file = OpenFile(path)

    def part(self, offset: int, nbytes: int) -> bytes:
        """Some bytes, all of them."""
        data = self._file.read_at(offset, nbytes) if offset + nbytes <= self.nbytes else b""
        if len(data) != nbytes:
            raise self.damaged(f"{nbytes:,} bytes at {offset:,} end beyond it")
        return data

    def damaged(self, what: str) -> FormatError:
        """Something else than there should be."""
        return FormatError(
            f"{self._path} cannot be read as an HDF5 file: {what}.",
            got=f"{self.nbytes:,} bytes",
            fix="the file is damaged; write or fetch it again",
        )


class _Heap:
    """Collections of objects, read when they are needed."""

    def __init__(self, file: _File) -> None:
        self._file = file
        self._kept: dict[int, tuple[bytes, Objects]] = {}

    def get(self, nbytes: int, address: int, number: int) -> bytes:
        """One object."""
        if nbytes == 0 or address in (0, _NOWHERE):
            return b""
        raw, objects = self._kept.get(address) or self._collection(address)
        start, end = objects.get(number, (0, -1))
        if end - start != nbytes:
            raise self._file.damaged(f"no string of {nbytes:,} bytes is {number} at {address:,}")
        return raw[start:end].partition(b"\0")[0]

    def _collection(self, address: int) -> tuple[bytes, Objects]:
        magic, version, size = _COLLECTION.unpack(self._file.part(address, _COLLECTION.size))
        if magic != b"GCOL" or version != 1:
            raise self._file.damaged(f"there are no strings at {address:,}")
        raw = self._file.part(address, size)
        found = raw, self._objects(raw, address)
        if size <= _LARGEST_KEPT:
            if len(self._kept) >= _KEPT_COLLECTIONS:
                self._kept.clear()
            self._kept[address] = found
        return found

    def _objects(self, raw: bytes, address: int) -> Objects:
        objects: Objects = {}
        at = _COLLECTION.size
        while at + _OBJECT.size <= len(raw):
            number, _, nbytes = _OBJECT.unpack_from(raw, at)
            if number == 0:
                break
            at += _OBJECT.size
            # One number twice would also allow more objects than there are numbers.
            if nbytes > len(raw) - at or number in objects:
                raise self._file.damaged(f"its strings at {address:,} overlap")
            objects[number] = (at, at + nbytes)
            at += -(-nbytes // 8) * 8
        return objects
