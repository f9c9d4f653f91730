"""State dicts that PyTorch has saved, read without it and without running what a pickle may say."""

from __future__ import annotations

import collections
import io
import math
import os
import pickle
import pickletools
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import numpy as np

from towerpack._core.errors import CheckpointError

_MAGIC: Final = 0x1950A86A20F9469CFC6C
_STORAGES: Final = {
    "FloatStorage": "<f4", "DoubleStorage": "<f8", "HalfStorage": "<f2", "LongStorage": "<i8",
    "IntStorage": "<i4", "ShortStorage": "<i2", "CharStorage": "i1", "ByteStorage": "u1",
    "BoolStorage": "?",
}  # fmt: skip


_ALWAYS_ALLOWED: Final = 64 << 20
_MOST_EXPANSION: Final = 100
_MOST_VALUES: Final = 100_000
_MOST_CHARACTERS: Final = 16 << 20
_MOST_OBJECTS: Final = 8 << 20


def most_bytes(size: int) -> int:
    """Return the largest content of a file of weights: 100 times its size, and at least 64 MiB."""
    return max(_ALWAYS_ALLOWED, _MOST_EXPANSION * size)


def check_expansion(archive: zipfile.ZipFile, most: int) -> None:
    """Refuse a zip archive whose entries have more than `most` bytes."""
    nbytes = sum(entry.file_size for entry in archive.infolist())
    if nbytes > most:
        raise ValueError(f"it would be {nbytes:,} bytes, of at most {most:,}")


def read_torch_file(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Read the tensors of a `.pth` or `.pt` file, as PyTorch lays them out: [out, in, h, w].

    Both formats of `torch.save` are known. A pickle in it may make dicts and tensors of numbers,
    and nothing else. Tensors in inner dicts are called `inner.name`.

    Raises:
        CheckpointError: It cannot be read, or is more than a state dict.
    """
    try:
        with Path(path).open("rb") as file:
            most = most_bytes(os.fstat(file.fileno()).st_size)
            found, data = _from_zip(file, most) if zipfile.is_zipfile(file) else _from_stream(file)
        if (nbytes := sum(tensor.nbytes for _, tensor in found)) > most:
            raise ValueError(f"its tensors have {nbytes:,} bytes, which the file cannot hold")
        return {name: tensor.array(data) for name, tensor in found}
    except (
        *(OSError, EOFError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError),
        *(RuntimeError, struct.error, zlib.error, pickle.UnpicklingError, zipfile.BadZipFile),
        MemoryError,  # A pickle may ask for any size.
    ) as error:
        raise CheckpointError(
            f"{path} cannot be read: {error}.",
            expected="a state dict: torch.save(model.state_dict(), path)",
        ) from error


@dataclass(frozen=True)
class _Storage:
    dtype: np.dtype[Any]
    key: str


@dataclass(frozen=True)
class _Tensor:
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.storage.dtype.itemsize

    def array(self, data: Mapping[str, bytes]) -> np.ndarray:
        dtype = self.storage.dtype
        strides = tuple(stride * dtype.itemsize for stride in self.strides)
        buffer = data[self.storage.key]
        if not math.prod(self.shape):
            return np.empty(self.shape, dtype)
        # NumPy refuses what would reach beyond the buffer.
        return np.ndarray(self.shape, dtype, buffer, self.offset * dtype.itemsize, strides).copy()


Found = list[tuple[str, _Tensor]]


def _tensor(
    storage: _Storage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: Any
) -> _Tensor:
    return _Tensor(storage, offset, shape, strides)


def _parameter(tensor: _Tensor, *_: Any) -> _Tensor:
    return tensor


class _Made:
    """What a file may call; each is new, since a pickle can change the objects that it names."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        known: dict[tuple[str, str], Callable[..., Any]] = {
            ("collections", "OrderedDict"): collections.OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2"): _tensor,
            ("torch._utils", "_rebuild_parameter"): _parameter,
        }
        if module_name == "torch" and global_name in _STORAGES:
            return global_name
        if (module_name, global_name) not in known:
            raise pickle.UnpicklingError(f"it holds a {module_name}.{global_name}")
        return _Made(known[module_name, global_name])

    def persistent_load(self, pid: Any, /) -> _Storage:
        return _Storage(np.dtype(_STORAGES[pid[1]]), str(pid[2]))


def _load(file: BinaryIO) -> Any:
    """Read one pickle, whose memo must not be numbered so that it takes all memory."""
    start = file.tell()
    for count, (opcode, number, _) in enumerate(pickletools.genops(file)):
        named = cast("int", number) if opcode.name == "LONG_BINPUT" else 0
        if max(count, named) > _MOST_OBJECTS:
            raise pickle.UnpicklingError(f"it has more than {_MOST_OBJECTS:,} objects")
    file.seek(start)
    return _Unpickler(file).load()


def _from_stream(file: BinaryIO) -> tuple[Found, dict[str, bytes]]:
    """The format before PyTorch 1.6: pickles, then the storages in the order of their keys."""
    file.seek(0)
    magic, _, _, tensors, keys = (_load(file) for _ in range(5))
    if magic != _MAGIC:
        raise ValueError("it is no file of PyTorch")
    found = _flat(tensors)
    dtypes = {tensor.storage.key: tensor.storage.dtype for _, tensor in found}
    data: dict[str, bytes] = {}
    for key in keys:
        number = int.from_bytes(file.read(8), "little")
        data[str(key)] = file.read(number * dtypes[str(key)].itemsize)
    return found, data


def _from_zip(file: BinaryIO, most: int) -> tuple[Found, dict[str, bytes]]:
    with zipfile.ZipFile(file) as archive:
        check_expansion(archive, most)
        [pickled] = [n for n in archive.namelist() if n.endswith("/data.pkl")]
        tensors: Any = _load(io.BytesIO(archive.read(pickled)))
        folder = pickled.removesuffix(".pkl") + "/"
        names = {n.removeprefix(folder): n for n in archive.namelist() if n.startswith(folder)}
        return _flat(tensors), {key: archive.read(name) for key, name in names.items()}


def _flat(tensors: Any) -> Found:
    """Tensors below a value, by their path; what else there is, such as an epoch, is left out."""
    found: Found = []
    characters = 0
    values: list[tuple[str, Any]] = [("", tensors)]
    for path, value in values:
        if isinstance(value, _Tensor):
            found.append((path, value))
        elif isinstance(value, dict):
            inner = cast("dict[Any, Any]", value)
            values += [(f"{path}.{key}" if path else str(key), v) for key, v in inner.items()]
        if len(values) > _MOST_VALUES:  # A dict in a dict may be named again and again.
            raise ValueError(f"it holds more than {_MOST_VALUES:,} values")
        characters += len(path)
        if characters > _MOST_CHARACTERS:  # The paths in a dict that holds itself grow without end.
            raise ValueError(f"its names have more than {_MOST_CHARACTERS:,} characters")
    return found
