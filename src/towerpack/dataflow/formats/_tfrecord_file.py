"""The TFRecord format: records one after another, each with checksums of its length and data.

length (uint64) | masked CRC of the length (uint32) | data | masked CRC of the data (uint32)
"""

from __future__ import annotations

import gzip
import struct
import zlib
from array import array
from collections.abc import Callable, Generator
from functools import cache
from pathlib import Path
from typing import IO, Any, Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import FormatError
from towerpack._core.extras import require
from towerpack.dataflow._opening import OpenFile, check_expansion, reading

Compression = Literal["gzip", "zlib"]

HEADER: Final = struct.Struct("<QI")
FOOTER: Final = struct.Struct("<I")
OVERHEAD: Final = HEADER.size + FOOTER.size

_MASK_DELTA: Final = 0xA282EAD8
_WINDOW: Final = 1 << 18
_LONG: Final = 1 << 15  # records so long are stepped over, not read, when a file is indexed
_READ: Final = 1 << 20


def masked_crc(data: bytes | memoryview) -> int:
    """The checksum as TensorFlow writes it: of data that may hold checksums themselves."""
    crc: int = _crc32c()(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def framed(record: bytes) -> bytes:
    """A record as it is written."""
    length = struct.pack("<Q", len(record))
    return b"".join(
        (length, FOOTER.pack(masked_crc(length)), record, FOOTER.pack(masked_crc(record)))
    )


def unframed(raw: bytes, path: Path, offset: int) -> bytes:
    """The record in the bytes that hold it; `offset` is for messages.

    Raises:
        FormatError: A checksum is wrong.
    """
    if len(raw) < OVERHEAD or _length(raw, 0, path, offset) != len(raw) - OVERHEAD:
        raise damaged(path, offset, "its length is not what it was")
    view = memoryview(raw)[HEADER.size : -FOOTER.size]
    if FOOTER.unpack_from(raw, len(raw) - FOOTER.size)[0] != masked_crc(view):
        raise damaged(path, offset, "the checksum of its data is wrong")
    return bytes(view)


def record_offsets(path: Path) -> NDArray[np.int64]:
    """Where each record of a plain file begins, and the last one ends.

    Raises:
        FormatError: The file was cut off, or a length is wrong.
    """
    file, size = OpenFile(path), path.stat().st_size
    offsets = array("q", [0])
    at = begin = 0
    window, wanted = b"", _WINDOW
    while at < size:
        if at - begin + HEADER.size > len(window):
            window, begin = file.read_at(at, wanted), at
            if len(window) < HEADER.size:
                raise damaged(path, at, "it is cut off")
        length = _length(window, at - begin, path, at)
        if length + OVERHEAD > size - at:
            raise damaged(path, at, "it is cut off")
        at += length + OVERHEAD
        offsets.append(at)
        wanted = HEADER.size if length >= _LONG else _WINDOW
    return np.frombuffer(offsets, np.int64)


def compression_of(path: Path) -> Compression | None:
    """How a file is compressed, by its first bytes.

    A plain file may begin like a compressed one, but then not with the right checksum.
    """
    with open(path, "rb") as file:
        start = file.read(HEADER.size)
    if len(start) == HEADER.size and HEADER.unpack(start)[1] == masked_crc(start[:8]):
        return None
    if start.startswith(b"\x1f\x8b"):
        return "gzip"
    if len(start) > 1 and start[0] & 15 == 8 and int.from_bytes(start[:2], "big") % 31 == 0:
        return "zlib"
    return None


def records_in_order(path: Path) -> Generator[bytes]:
    """The records of a file, which may be compressed.

    Raises:
        FormatError: It is damaged, or was cut off.
    """
    stored = path.stat().st_size
    with _Content(path, compression_of(path)) as stream:
        offset = 0
        while header := stream.read(HEADER.size):
            if len(header) < HEADER.size:
                raise damaged(path, offset, "it is cut off")
            nbytes = _length(header, 0, path, offset) + FOOTER.size
            check_expansion(nbytes, stored, f"the record at byte {offset:,}", path)
            rest = stream.read(nbytes)
            if len(rest) < nbytes:
                raise damaged(path, offset, "it is cut off")
            yield unframed(header + rest, path, offset)
            offset += len(header) + len(rest)


def damaged(path: Path, offset: int, what: str) -> FormatError:
    """The error for a record."""
    return FormatError(
        f"{path} has a damaged record at byte {offset:,}: {what}.",
        fix="the file was cut off, changed, or is no TFRecord file; write or fetch it again",
    )


def _length(window: bytes, at: int, path: Path, offset: int) -> int:
    length, crc = HEADER.unpack_from(window, at)
    if masked_crc(window[at : at + 8]) != crc:
        raise damaged(path, offset, "the checksum of its length is wrong")
    return length


class _Inflater(Protocol):
    """What `zlib.decompressobj` gives."""

    @property
    def eof(self) -> bool: ...
    @property
    def unconsumed_tail(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class _Content:
    """What is in a file, inflated. Takes no more memory than is asked for."""

    def __init__(self, path: Path, compression: Compression | None) -> None:
        self._path = path
        self._what = f"a {compression or 'plain'} TFRecord file"
        self._file: IO[bytes] | Any = (gzip.open if compression == "gzip" else open)(path, "rb")
        self._inflater: _Inflater | None = zlib.decompressobj() if compression == "zlib" else None

    def __enter__(self) -> _Content:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()

    def read(self, nbytes: int) -> bytes:
        """So many bytes; fewer only where the content ends."""
        parts: list[bytes] = []
        take = self._file.read if self._inflater is None else self._inflate
        with reading(self._path, self._what):
            while nbytes > 0 and (part := take(min(_READ, nbytes))):
                parts.append(part)
                nbytes -= len(part)
        return b"".join(parts)

    def _inflate(self, nbytes: int) -> bytes:
        inflater = self._inflater
        while inflater is not None and not inflater.eof:
            raw = inflater.unconsumed_tail or self._file.read(_READ)
            part = inflater.decompress(raw, nbytes)
            if part:
                return part
            if not raw:
                raise EOFError("it is cut off")
        return b""


@cache
def _crc32c() -> Callable[[bytes | memoryview], int]:
    module: Any = require("crc32c", extra="formats", needed_for="TFRecord files")
    return module.crc32c
