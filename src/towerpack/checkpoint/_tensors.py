"""Named arrays in safetensors files: written whole, read one at a time, nothing executed.

The library writes and reads without holding the interpreter's lock (measured with version 0.8), so
a save in a background thread does not stall training.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file  # pyright: ignore[reportUnknownVariableType]

from towerpack._core.errors import CheckpointError
from towerpack._core.extras import require
from towerpack.checkpoint._manifest import FileRecord, FormatError, Specs

_CHUNK: Final = 1 << 20
_OS_ERROR: Final = re.compile(r"os error (\d+)")
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
_STORABLE: Final = frozenset(_DTYPES.values())


class Tensors(Mapping[str, np.ndarray]):
    """The arrays of one group, by name. Each access reads a fresh, writable copy.

    The file stays open, so that a writer that removes the checkpoint meanwhile does no harm.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._file: Any = safe_open(path, framework="np")
            names: list[str] = self._file.keys()
            self._specs: Specs = {name: _spec(self._file, name) for name in names}
        except SafetensorError as error:
            raise FormatError(f"{path.name} is not a safetensors file ({error})") from error

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
        raise FormatError(f"tensor {name!r:.80} has the dtype {dtype}")
    return tuple(view.get_shape()), _DTYPES[dtype]


def specs_of(arrays: Mapping[str, np.ndarray], group: str) -> Specs:
    """Shapes and dtypes of arrays that are to be stored.

    Raises:
        CheckpointError: An array that a safetensors file cannot hold.
    """
    found: Specs = {}
    for name, array in arrays.items():
        dtype = np.asarray(array).dtype.name
        if dtype not in _STORABLE:
            raise CheckpointError(
                f"Tensor {name!r} of the group {group!r} cannot be stored.",
                got=f"dtype {dtype}",
                expected="one of " + ", ".join(sorted(_STORABLE)),
                fix="convert it, or put it in the state (text and bytes belong there)",
            )
        found[name] = (np.shape(array), dtype)
    return found


def write_tensors(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write a new file; it is not yet synced.

    Raises:
        OSError: The disk is full, or the like.
    """
    # The library writes the memory behind the array, whatever its strides say.
    whole = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    try:
        path.touch()  # with the mode that files of this process have; the library's is 0600
        mode = path.stat().st_mode
        save_file(whole, path)
        path.chmod(mode)
    except SafetensorError as error:
        number = _OS_ERROR.search(str(error))
        code = int(number[1]) if number else errno.EIO
        raise OSError(code, f"{os.strerror(code)} ({error})", str(path)) from error


def sync_and_record(path: Path) -> FileRecord:
    """Wait until a file is on disk, and take its size and checksum."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        return FileRecord(os.fstat(fd).st_size, _sha256(fd))
    finally:
        os.close(fd)


def check_file(path: Path, record: FileRecord, *, checksum: bool) -> None:
    """Check that a file is what the manifest says, reading it only where its size fits.

    Raises:
        FormatError: It is missing, not a plain file, or of another size or content.
    """
    fd = open_plain(path)
    try:
        size = os.fstat(fd).st_size
        if size != record.nbytes:
            raise FormatError(f"{path.name} has {size} bytes instead of {record.nbytes}")
        if checksum and _sha256(fd) != record.sha256:
            raise FormatError(f"{path.name} is damaged (its checksum does not fit)")
    finally:
        os.close(fd)


def open_plain(path: Path) -> int:
    """A descriptor of a plain file: not of a link out of the checkpoint, a pipe or a device.

    Raises:
        FormatError: There is no such file, or it is something else, or it cannot be read.
    """
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        fd = os.open(path, flags | getattr(os, "O_CLOEXEC", 0))
    except FileNotFoundError:
        raise FormatError(f"{path.name} is missing") from None
    except OSError as error:
        raise FormatError(f"{path.name} cannot be read ({error.strerror})") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise FormatError(f"{path.name} is not a plain file")
    return fd


def read_plain(path: Path, *, limit: int) -> bytes:
    """The content of a plain file of at most `limit` bytes.

    Raises:
        FormatError: As `open_plain`, or it is larger.
    """
    with os.fdopen(open_plain(path), "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise FormatError(f"{path.name} is larger than {limit} bytes")
    return data


def _sha256(fd: int) -> str:
    digest = hashlib.sha256()
    while chunk := os.read(fd, _CHUNK):
        digest.update(chunk)
    return digest.hexdigest()
