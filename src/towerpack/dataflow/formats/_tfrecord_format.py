"""The TFRecord format: consecutive records with checksums of their length and data.

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
from towerpack.dataflow._remote_files import RemoteFile
from towerpack.dataflow._user_files import (
    AnyFile,
    PathLike,
    check_expansion,
    head_of,
    open_file,
    reading,
)
from towerpack.dataflow.formats._indexed_files import Version
from towerpack.dataflow.formats._numpy import parse_npy
from towerpack.dataflow.formats._shard_index import Index, index_of
from towerpack.dataflow.formats._writing import whole_file

Compression = Literal["gzip", "zlib"]

HEADER: Final = struct.Struct("<QI")
FOOTER: Final = struct.Struct("<I")
OVERHEAD: Final = HEADER.size + FOOTER.size

_MASK_DELTA: Final = 0xA282EAD8
_WINDOW: Final = 1 << 18
_LONG: Final = 1 << 15  # indexing skips the contents of records of this size
_READ: Final = 1 << 20
_GZIP_OR_ZLIB: Final = 47  # window bits with which zlib detects the format


def masked_crc(data: bytes | memoryview) -> int:
    """Return TensorFlow's masked CRC, which also protects data that contain CRCs."""
    crc: int = _crc32c()(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def framed(record: memoryview) -> bytes:
    length = struct.pack("<Q", len(record))
    parts = (length, FOOTER.pack(masked_crc(length)), record, FOOTER.pack(masked_crc(record)))
    return b"".join(parts)


def unframed(raw: bytes, path: AnyFile, offset: int) -> bytes:
    """Check the checksums of the record in `raw` and return its data. `offset` is for errors."""
    if len(raw) < OVERHEAD or _length(raw, path, offset) != len(raw) - OVERHEAD:
        raise damaged(path, offset, "its length has changed")
    view = memoryview(raw)[HEADER.size : -FOOTER.size]
    if FOOTER.unpack_from(raw, len(raw) - FOOTER.size)[0] != masked_crc(view):
        raise damaged(path, offset, "the checksum of its data is wrong")
    return bytes(view)


def record_offsets(path: AnyFile) -> NDArray[np.int64]:
    """Return the start of each record of an uncompressed file, and the end of the last record."""
    file, size = open_file(path), path.stat().st_size
    offsets = array("q", [0])
    offset = window_start = 0
    window, nbytes = b"", _WINDOW
    while offset < size:
        if offset - window_start + HEADER.size > len(window):
            window, window_start = file.read_at(offset, nbytes), offset
        start = offset - window_start
        length = _length(window[start : start + HEADER.size], path, offset)
        offset += length + OVERHEAD
        if offset > size:
            raise damaged(path, offsets[-1], "it is cut off")
        offsets.append(offset)
        nbytes = HEADER.size if length >= _LONG else _WINDOW
    return np.frombuffer(offsets, np.int64)


def tfrecord_index(path: AnyFile) -> Index:
    return {"offsets": record_offsets(path)}


def is_tfrecord(path: AnyFile) -> bool:
    """Return whether a file begins with the header of a record."""
    return _begins_with_header(head_of(path))


def _begins_with_header(head: bytes) -> bool:
    start = head[: HEADER.size]
    return len(start) == HEADER.size and HEADER.unpack(start)[1] == masked_crc(start[:8])


def is_compressed(path: AnyFile) -> bool:
    """Return whether a file begins like a gzip or zlib file."""
    start = head_of(path)
    if _begins_with_header(start):  # an uncompressed file may also begin with the bytes of gzip
        return False
    zlibs = len(start) > 1 and start[0] & 15 == 8 and int.from_bytes(start[:2], "big") % 31 == 0
    return zlibs or start.startswith(b"\x1f\x8b")


def records_in_order(path: AnyFile) -> Generator[bytes]:
    stored, compressed = path.stat().st_size, is_compressed(path)
    with reading(path, "a TFRecord file"), path.open("rb") as file:
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


def damaged(path: AnyFile, offset: int, what: str) -> FormatError:
    return FormatError(
        f"{path} has a damaged record at byte {offset:,}: {what}.",
        fix="check that the file is a TFRecord file, and write or download the file again",
    )


def _length(raw: bytes, path: AnyFile, offset: int) -> int:
    if len(raw) < HEADER.size:
        raise damaged(path, offset, "it is cut off")
    length, crc = HEADER.unpack_from(raw)
    if masked_crc(raw[:8]) != crc:
        raise damaged(path, offset, "the checksum of its length is wrong")
    return length


class _Inflated(io.RawIOBase):
    """Decompressed contents of a gzip or zlib file, decompressed on demand."""

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
                self._inflater = zlib.decompressobj(_GZIP_OR_ZLIB)  # concatenated files
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


def index_file(path: AnyFile, version: Version, index_dir: PathLike | None) -> NDArray[np.int64]:
    """Return the `record_offsets` of a file. Cache them in `index_dir`, if not None."""
    if index_dir is None or isinstance(path, RemoteFile):
        offsets = index_of(path, tfrecord_index)["offsets"]
        return offsets if _fit(offsets, version[0]) else record_offsets(path)
    name = hashlib.blake2b(os.fsencode(path.resolve()), digest_size=8).hexdigest()
    index_path = Path(index_dir, f"{path.name}.{name}.npy")
    offsets = _read_index(index_path, version)
    if offsets is None:
        offsets = record_offsets(path)
        with whole_file(index_path) as temporary, open(temporary, "wb") as file:
            np.save(file, np.concatenate((np.array(version, np.int64), offsets)))
    return offsets


def _read_index(path: Path, version: Version) -> NDArray[np.int64] | None:
    """Read a cached index. Return `None` if it is missing, damaged, or of another file version."""
    try:
        content = parse_npy(path.read_bytes(), path)
    except (FileNotFoundError, FormatError):
        return None
    if content.dtype != np.int64 or content.shape < (3,):
        return None
    offsets = content[2:]
    is_same = tuple(content[:2].tolist()) == version
    return offsets if is_same and _fit(offsets, version[0]) else None


def _fit(offsets: NDArray[np.int64], size: int) -> bool:
    steps_fit = (np.diff(offsets) >= OVERHEAD).all()
    return bool(offsets[0] == 0 and offsets[-1] == size and steps_fit)
