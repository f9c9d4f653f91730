"""The TFRecord format: records one after another, each with checksums of its length and data.

length (uint64) | masked CRC of the length (uint32) | data | masked CRC of the data (uint32)
"""

from __future__ import annotations

import hashlib
import io
import os
import struct
import zlib
from array import array
from collections.abc import Callable, Generator
from functools import cache
from pathlib import Path
from typing import IO, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import FormatError
from towerpack._core.extras import require
from towerpack.dataflow._user_files import OpenFile, PathLike, check_expansion, reading
from towerpack.dataflow.formats._indexed_files import Version
from towerpack.dataflow.formats._numpy import parse_npy
from towerpack.dataflow.formats._writing import whole_file

Compression = Literal["gzip", "zlib"]

HEADER: Final = struct.Struct("<QI")
FOOTER: Final = struct.Struct("<I")
OVERHEAD: Final = HEADER.size + FOOTER.size

_MASK_DELTA: Final = 0xA282EAD8
_WINDOW: Final = 1 << 18
_LONG: Final = 1 << 15  # records so long are stepped over, not read, when a file is indexed
_READ: Final = 1 << 20
_GZIP_OR_ZLIB: Final = 47  # as zlib calls "either"


def masked_crc(data: bytes | memoryview) -> int:
    """The checksum as TensorFlow writes it: of data that may hold checksums themselves."""
    crc: int = _crc32c()(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def framed(record: memoryview) -> bytes:
    length = struct.pack("<Q", len(record))
    parts = (length, FOOTER.pack(masked_crc(length)), record, FOOTER.pack(masked_crc(record)))
    return b"".join(parts)


def unframed(raw: bytes, path: Path, offset: int) -> bytes:
    """The record in the bytes that hold it, its checksums compared; `offset` is for messages."""
    if len(raw) < OVERHEAD or _length(raw, path, offset) != len(raw) - OVERHEAD:
        raise damaged(path, offset, "its length is not what it was")
    view = memoryview(raw)[HEADER.size : -FOOTER.size]
    if FOOTER.unpack_from(raw, len(raw) - FOOTER.size)[0] != masked_crc(view):
        raise damaged(path, offset, "the checksum of its data is wrong")
    return bytes(view)


def record_offsets(path: Path) -> NDArray[np.int64]:
    """Where each record of a plain file begins, and the last one ends."""
    file, size = OpenFile(path), path.stat().st_size
    offsets = array("q", [0])
    at = begin = 0
    window, wanted = b"", _WINDOW
    while at < size:
        if at - begin + HEADER.size > len(window):
            window, begin = file.read_at(at, wanted), at
        length = _length(window[at - begin : at - begin + HEADER.size], path, at)
        at += length + OVERHEAD
        if at > size:
            raise damaged(path, offsets[-1], "it is cut off")
        offsets.append(at)
        wanted = HEADER.size if length >= _LONG else _WINDOW
    return np.frombuffer(offsets, np.int64)


def is_compressed(path: Path) -> bool:
    """Whether a file is compressed with gzip or zlib, by its first bytes."""
    with open(path, "rb") as file:
        start = file.read(HEADER.size)
    # A plain file may begin like a compressed one, but then with the right checksum.
    if len(start) == HEADER.size and HEADER.unpack(start)[1] == masked_crc(start[:8]):
        return False
    zlibs = len(start) > 1 and start[0] & 15 == 8 and int.from_bytes(start[:2], "big") % 31 == 0
    return zlibs or start.startswith(b"\x1f\x8b")


def records_in_order(path: Path) -> Generator[bytes]:
    """The records of a file, which may be compressed."""
    stored, compressed = path.stat().st_size, is_compressed(path)
    with reading(path, "a TFRecord file"), open(path, "rb") as file:
        stream = io.BufferedReader(_Inflated(file)) if compressed else file
        offset = 0
        while header := stream.read(HEADER.size):
            nbytes = _length(header, path, offset) + FOOTER.size
            check_expansion(nbytes, stored, f"the record at byte {offset:,}", path)
            rest = stream.read(nbytes)
            if len(rest) < nbytes:
                raise damaged(path, offset, "it is cut off")
            yield unframed(header + rest, path, offset)
            offset += len(header) + len(rest)


def damaged(path: Path, offset: int, what: str) -> FormatError:
    return FormatError(
        f"{path} has a damaged record at byte {offset:,}: {what}.",
        fix="the file was cut off, changed, or is no TFRecord file; write or fetch it again",
    )


def _length(raw: bytes, path: Path, offset: int) -> int:
    """The length of the record that begins with these bytes, its checksum compared."""
    if len(raw) < HEADER.size:
        raise damaged(path, offset, "it is cut off")
    length, crc = HEADER.unpack_from(raw)
    if masked_crc(raw[:8]) != crc:
        raise damaged(path, offset, "the checksum of its length is wrong")
    return length


class _Inflated(io.RawIOBase):
    """The content of a file compressed with gzip or zlib, inflated as it is asked for."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._rest = b""
        self._inflater = zlib.decompressobj(_GZIP_OR_ZLIB)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        while True:
            raw = self._rest or self._file.read(_READ)
            if self._inflater.eof:
                if not raw:
                    return 0
                self._inflater = zlib.decompressobj(_GZIP_OR_ZLIB)  # files may be joined
            part = self._inflater.decompress(raw, len(buffer))
            self._rest = self._inflater.unconsumed_tail or self._inflater.unused_data
            if part:
                buffer[: len(part)] = part
                return len(part)
            if not raw and not self._inflater.eof:
                raise EOFError("it is cut off")


@cache
def _crc32c() -> Callable[[bytes | memoryview], int]:
    module: Any = require("crc32c", extra="formats", needed_for="TFRecord files")
    return module.crc32c


def index_file(path: Path, version: Version, index_dir: PathLike | None) -> NDArray[np.int64]:
    """`record_offsets`, or what was kept of them in `index_dir`."""
    if index_dir is None:
        return record_offsets(path)
    name = hashlib.blake2b(os.fsencode(path.resolve()), digest_size=8).hexdigest()
    kept = Path(index_dir, f"{path.name}.{name}.npy")
    offsets = _kept(kept, version)
    if offsets is None:
        offsets = record_offsets(path)
        with whole_file(kept) as temporary, open(temporary, "wb") as file:
            np.save(file, np.concatenate((np.array(version, np.int64), offsets)))
    return offsets


def _kept(path: Path, version: Version) -> NDArray[np.int64] | None:
    """An index of this version of the file; `None` if there is none that is whole."""
    try:
        content = parse_npy(path.read_bytes(), path)
    except (FileNotFoundError, FormatError):
        return None
    if content.dtype != np.int64 or content.shape < (3,):
        return None
    offsets = content[2:]
    fits = (*content[:2].tolist(), offsets[0], offsets[-1]) == (*version, 0, version[0])
    return offsets if fits and (np.diff(offsets) >= OVERHEAD).all() else None
