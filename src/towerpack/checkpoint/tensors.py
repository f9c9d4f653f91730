"""Named arrays in safetensors files: written whole, read one at a time, nothing executed.

Reading is the library's work. Writing, checksums included, takes little time of the processor and
the interpreter's lock, so that a save in a background thread does not stall training.
"""

from __future__ import annotations

import errno
import hashlib
import json
import mmap
import os
import stat
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from safetensors import SafetensorError, safe_open

from towerpack._core.errors import CheckpointError
from towerpack._core.extras import require
from towerpack.checkpoint._manifest import FileRecord, InvalidCheckpointError, Specs

if sys.platform == "linux":
    import fcntl

_CHUNK: Final = 1 << 20
_DTYPES: Final = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
    "C64": "complex64",
}
_TYPES: Final = {name: code for code, name in _DTYPES.items()}
_DIRECT: Final[int] = getattr(os, "O_DIRECT", 0)  # Linux


class Tensors(Mapping[str, np.ndarray]):
    """The arrays of one group, by name. Each access reads a fresh, writable copy.

    The file stays open, so that a writer that removes the checkpoint meanwhile does no harm.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._file: Any = safe_open(path, framework="np")
            names: list[str] = self._file.keys()
            self._specs: Specs = {name: _spec(self._file, name) for name in names}
        except (SafetensorError, ValueError) as error:
            raise InvalidCheckpointError(
                f"{path.name} is not a safetensors file ({error})"
            ) from error

    @property
    def specs(self) -> Specs:
        """Name to (shape, dtype name), without reading any array."""
        return dict(self._specs)

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._specs:
            raise KeyError(name)
        if self._specs[name][1] == "bfloat16":
            # NumPy knows the type by name once this is imported.
            require("ml_dtypes", extra="tf", needed_for="Reading bfloat16")
        return self._file.get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)

    def __repr__(self) -> str:
        return f"Tensors({len(self)} arrays)"


def _spec(file: Any, name: str) -> tuple[tuple[int, ...], str]:
    view = file.get_slice(name)
    dtype = view.get_dtype()
    if dtype not in _DTYPES:
        raise InvalidCheckpointError(f"tensor {name!r:.80} has the dtype {dtype}")
    shape = tuple(view.get_shape())
    np.broadcast_to(0.0, shape)  # raises ValueError if no array has this shape
    return shape, _DTYPES[dtype]


def specs_of(arrays: Mapping[str, np.ndarray], group: str) -> Specs:
    """Shapes and dtypes of arrays that are to be stored."""
    found: Specs = {}
    for name, array in arrays.items():
        dtype = np.asarray(array).dtype.name
        if dtype not in _TYPES:
            raise CheckpointError(
                f"Tensor {name!r} of the group {group!r} cannot be stored.",
                got=f"dtype {dtype}",
                expected="one of " + ", ".join(sorted(_TYPES)),
                fix="convert it, or put it in the state (text and bytes belong there)",
            )
        found[name] = (np.shape(array), dtype)
    return found


def write_tensors(path: Path, arrays: Mapping[str, np.ndarray]) -> FileRecord:
    """Write a new file, wait until it is on disk, and take its size and checksum.

    Past the page cache where the system can do that: filling it cost ten times the CPU time, in a
    thread beside training.
    """
    # What is to be aligned to more bytes comes first.
    whole = {name: _little_endian(array) for name, array in arrays.items()}
    names = sorted(whole, key=lambda name: (-whole[name].itemsize, name))
    header: dict[str, Any] = {}
    end = 0
    for name in names:
        array = whole[name]
        begin, end = end, end + array.nbytes
        dtype = _TYPES[array.dtype.name]
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": (begin, end)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with _Writer(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            file.write(whole[name].reshape(-1).view(np.uint8).data)
    return FileRecord(8 + len(text) + end, file.sha256)


def _little_endian(array: np.ndarray) -> np.ndarray:
    whole = np.asarray(array, order="C")
    return whole.astype(whole.dtype.newbyteorder("<")) if whole.dtype.byteorder == ">" else whole


class _Writer:
    """Write a file in pieces that are aligned in memory and on the disk; synced when it ends."""

    def __init__(self, path: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_CLOEXEC", 0)
        try:
            self._fd = os.open(path, flags | _DIRECT, 0o666)
        except OSError as error:
            if error.errno != errno.EINVAL:  # As memory does that acts as a disk.
                raise
            self._fd = os.open(path, flags, 0o666)
        self._piece = memoryview(mmap.mmap(-1, _CHUNK))
        self._filled = 0
        self._digest = hashlib.sha256()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        try:
            if failure is None:
                self._flush()
                os.fsync(self._fd)
        finally:
            os.close(self._fd)

    @property
    def sha256(self) -> str:
        """Checksum of what has been written."""
        return self._digest.hexdigest()

    def write(self, data: bytes | memoryview) -> None:
        """Put bytes behind those before."""
        left = memoryview(data)
        while left:
            size = min(len(left), _CHUNK - self._filled)
            self._piece[self._filled : self._filled + size] = left[:size]
            self._filled += size
            left = left[size:]
            if self._filled == _CHUNK:
                self._flush()

    def _flush(self) -> None:
        left = self._piece[: self._filled]
        self._digest.update(left)
        self._filled = 0
        if len(left) < _CHUNK:
            self._go_through_page_cache()
        while left:
            try:
                left = left[os.write(self._fd, left) :]
            except OSError as error:
                if error.errno != errno.EINVAL or not self._go_through_page_cache():
                    raise

    def _go_through_page_cache(self) -> bool:
        """Write the rest as usual, as it is not aligned or not supported; False if it did so."""
        if sys.platform != "linux":
            return False
        flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
        fcntl.fcntl(self._fd, fcntl.F_SETFL, flags & ~_DIRECT)
        return bool(flags & _DIRECT)


def sync_and_record(path: Path) -> FileRecord:
    """Wait until a file is on disk, and take its size and checksum."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        return FileRecord(os.fstat(fd).st_size, _sha256(fd))
    finally:
        os.close(fd)


def check_file(path: Path, record: FileRecord, *, checksum: bool) -> None:
    """Check that a file is what the manifest says, reading it only where its size fits."""
    fd = open_plain(path)
    try:
        size = os.fstat(fd).st_size
        if size != record.nbytes:
            raise InvalidCheckpointError(f"{path.name} has {size} bytes instead of {record.nbytes}")
        if checksum and _sha256(fd) != record.sha256:
            raise InvalidCheckpointError(f"{path.name} is damaged (its checksum does not fit)")
    finally:
        os.close(fd)


def open_plain(path: Path) -> int:
    """A descriptor of a plain file: not of a link out of the checkpoint, a pipe or a device."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        fd = os.open(path, flags | getattr(os, "O_CLOEXEC", 0))
    except FileNotFoundError:
        raise InvalidCheckpointError(f"{path.name} is missing") from None
    except OSError as error:
        raise InvalidCheckpointError(f"{path.name} cannot be read ({error.strerror})") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise InvalidCheckpointError(f"{path.name} is not a plain file")
    return fd


def read_plain(path: Path, *, limit: int) -> bytes:
    """Return the content of a plain file of at most `limit` bytes."""
    with os.fdopen(open_plain(path), "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise InvalidCheckpointError(f"{path.name} is larger than {limit} bytes")
    return data


def _sha256(fd: int) -> str:
    digest = hashlib.sha256()
    while chunk := os.read(fd, _CHUNK):
        digest.update(chunk)
    return digest.hexdigest()
