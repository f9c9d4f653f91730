"""Named arrays in safetensors files: written atomically, read one by one, without code execution.

The safetensors library reads the files. Writing is done here, with little CPU time and little time
under the interpreter's lock, so that a save in a background thread does not slow down training.
"""

import errno
import hashlib
import json
import mmap
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from safetensors import SafetensorError, safe_open

from towerpack._core.errors import CheckpointError, ConfigError
from towerpack._core.extras import require
from towerpack._core.files import open_regular
from towerpack.checkpoint._manifest import FileRecord, InvalidCheckpointError, Specs

if sys.platform == "linux":
    import fcntl

_CHUNK: Final = 1 << 20
_DTYPES: Final = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64",
    "I32": "int32", "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32",
    "U16": "uint16", "U8": "uint8", "BOOL": "bool", "C64": "complex64",
}  # fmt: skip
_TYPES: Final = {name: code for code, name in _DTYPES.items()}
_DIRECT: Final[int] = getattr(os, "O_DIRECT", 0)  # Linux


class Tensors(Mapping[str, np.ndarray]):
    """Arrays of a safetensors file by name. Each access reads an array from the file.

    The arrays are new and writable. They can be read even after the file was removed.

    Args:
        path: Path of the file.

    Raises:
        InvalidCheckpointError: The file is missing or damaged, or has an unsupported dtype.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._file: Any = safe_open(path, framework="np")
            names: list[str] = self._file.keys()
            self._specs: Specs = {name: _spec(self._file, name) for name in names}
        except (OSError, SafetensorError, ValueError) as error:
            raise InvalidCheckpointError(f"{path.name} cannot be read ({error})") from error

    @property
    def specs(self) -> Specs:
        """Shape and dtype name of each array, from the file's header."""
        return dict(self._specs)

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._specs:
            raise KeyError(name)
        if self._specs[name][1] == "bfloat16":
            # After this import, NumPy knows the dtype by name.
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
        raise InvalidCheckpointError(f"tensor {name!r:.80} has the unsupported dtype {dtype}")
    shape = tuple(view.get_shape())
    np.broadcast_to(0.0, shape)  # raises ValueError if no array has this shape
    return shape, _DTYPES[dtype]


def specs_of(arrays: Mapping[str, np.ndarray], group: str) -> Specs:
    """Return shape and dtype name of each array, after checking that all dtypes can be stored."""
    specs: Specs = {}
    for name, array in arrays.items():
        dtype = np.asarray(array).dtype.name
        if dtype not in _TYPES:
            raise CheckpointError(
                f"The dtype of tensor {name!r} in the group {group!r} must be one of "
                f"{', '.join(sorted(_TYPES))}, got {dtype}.",
                fix="cast the tensor to one of these dtypes, or store text and bytes in the state",
            )
        specs[name] = (np.shape(array), dtype)
    return specs


def write_tensors(path: Path, arrays: Mapping[str, np.ndarray]) -> FileRecord:
    """Write a safetensors file, wait until it is on disk, and return its size and checksum.

    If possible, data bypasses the page cache: to fill it would cost ten times the CPU time.
    """
    # Arrays with larger items come first, so that all arrays are aligned.
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
    """File writer that bypasses the page cache if possible. Data is on disk after its exit."""

    def __init__(self, path: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_CLOEXEC", 0)
        try:
            self._fd = os.open(path, flags | _DIRECT, 0o666)
        except OSError as error:
            if error.errno != errno.EINVAL:  # File systems in memory do not support O_DIRECT.
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
        return self._digest.hexdigest()

    def write(self, data: bytes | memoryview) -> None:
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
        """Disable direct I/O for data that is not aligned. Return whether it was enabled before."""
        if sys.platform != "linux":
            return False
        flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
        fcntl.fcntl(self._fd, fcntl.F_SETFL, flags & ~_DIRECT)
        return bool(flags & _DIRECT)


def sync_and_record(path: Path) -> FileRecord:
    """Wait until a file is on disk, and return its size and checksum."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        return FileRecord(os.fstat(fd).st_size, _sha256(fd))
    finally:
        os.close(fd)


def check_file(path: Path, record: FileRecord, *, checksum: bool) -> None:
    """Raise InvalidCheckpointError if a file has another size or checksum than in the manifest."""
    fd = open_plain(path)
    try:
        size = os.fstat(fd).st_size
        if size != record.nbytes:
            raise InvalidCheckpointError(f"{path.name} has {size} bytes instead of {record.nbytes}")
        if checksum and _sha256(fd) != record.sha256:
            raise InvalidCheckpointError(f"{path.name} is damaged (its checksum does not match)")
    finally:
        os.close(fd)


def open_plain(path: Path) -> int:
    """Open a regular file and return its descriptor. Links, pipes and devices raise an error."""
    try:
        return open_regular(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except FileNotFoundError:
        raise InvalidCheckpointError(f"{path.name} is missing") from None
    except OSError as error:
        raise InvalidCheckpointError(f"{path.name} cannot be read ({error.strerror})") from error
    except ConfigError:
        raise InvalidCheckpointError(f"{path.name} is not a plain file") from None


def read_plain(path: Path, *, limit: int) -> bytes:
    """Return the content of a regular file of at most `limit` bytes."""
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
