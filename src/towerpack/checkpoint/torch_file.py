"""Reading of PyTorch's state dicts without PyTorch, and without executing pickled code."""

import collections
import functools
import io
import math
import os
import pickle
import pickletools
import zipfile
from collections.abc import Callable, Iterable, Mapping
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
_MOST_VALUES: Final = 100_000
_MOST_CHARACTERS: Final = 16 << 20
_MOST_OBJECTS: Final = 8 << 20
_MOST_TUPLES: Final = 80_000  # in each other, twice as many overflow the stack of hash()


def most_bytes(stored: int) -> int:
    """Return the largest allowed content of a file of `stored` bytes: 100 times that, or 64 MiB."""
    return max(64 << 20, 100 * stored)


def check_size(parts: Iterable[int], stored: int) -> None:
    """Raise ValueError if sizes add up to more than a file of `stored` bytes may contain."""
    most = most_bytes(stored)
    if (nbytes := sum(parts)) > most:
        raise ValueError(f"its content would have {nbytes:,} bytes, the limit is {most:,}")


def read_torch_file(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Read the tensors of a `.pth` or `.pt` file as arrays, with PyTorch's order of dimensions.

    Both formats of `torch.save` are supported. The pickled data may contain only dicts and numeric
    tensors. Tensors in inner dicts are named `inner.name`.

    Args:
        path: Path of the file.

    Raises:
        CheckpointError: The file cannot be read, or contains more than a state dict.
    """
    try:
        with Path(path).open("rb") as file:
            stored = os.fstat(file.fileno()).st_size
            named, data = (
                _from_zip(file, stored) if zipfile.is_zipfile(file) else _from_stream(file)
            )
        check_size((tensor.nbytes for _, tensor in named), stored)
        return {name: tensor.array(data) for name, tensor in named}
    except Exception as error:  # damage raises errors of many kinds
        raise CheckpointError(
            f"{path} cannot be read: {error}.",
            fix="save a state dict: torch.save(model.state_dict(), path)",
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
        # NumPy refuses strides that reach beyond the buffer.
        return np.ndarray(self.shape, dtype, buffer, self.offset * dtype.itemsize, strides).copy()


NamedTensors = list[tuple[str, _Tensor]]


class _Unpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        known: dict[tuple[str, str], Callable[..., Any]] = {
            ("collections", "OrderedDict"): collections.OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2"): lambda *fields: _Tensor(*fields[:4]),
            ("torch._utils", "_rebuild_parameter"): lambda *fields: fields[0],
        }
        if module_name == "torch" and global_name in _STORAGES:
            return global_name
        if (module_name, global_name) not in known:
            raise pickle.UnpicklingError(f"it holds a {module_name}.{global_name}")
        # A new object, because a pickle can change objects.
        return functools.partial(known[module_name, global_name])

    def persistent_load(self, pid: Any, /) -> _Storage:
        return _Storage(np.dtype(_STORAGES[pid[1]]), str(pid[2]))


def _load(file: BinaryIO) -> Any:
    """Unpickle one object from a file. Raise UnpicklingError if it could exhaust the memory."""
    start, tuples = file.tell(), 0
    for count, (opcode, number, _) in enumerate(pickletools.genops(file)):
        named = cast("int", number) if opcode.name == "LONG_BINPUT" else 0
        tuples += opcode.name.startswith("TUPLE")
        if max(count, named) > _MOST_OBJECTS or tuples > _MOST_TUPLES:
            raise pickle.UnpicklingError("it has too many objects")
    file.seek(start)
    return _Unpickler(file).load()


def _from_stream(file: BinaryIO) -> tuple[NamedTensors, dict[str, bytes]]:
    """Read the file format from before PyTorch 1.6: pickled objects, then the tensors' data."""
    file.seek(0)
    magic, _, _, tensors, keys = (_load(file) for _ in range(5))
    if magic != _MAGIC:
        raise ValueError("it is not a PyTorch file")
    named = _flat(tensors)
    dtypes = {tensor.storage.key: tensor.storage.dtype for _, tensor in named}
    data: dict[str, bytes] = {}
    for key in keys:
        number = int.from_bytes(file.read(8), "little")
        data[str(key)] = file.read(number * dtypes[str(key)].itemsize)
    return named, data


def _from_zip(file: BinaryIO, stored: int) -> tuple[NamedTensors, dict[str, bytes]]:
    with zipfile.ZipFile(file) as archive:
        check_size((entry.file_size for entry in archive.infolist()), stored)
        [pickled] = [n for n in archive.namelist() if n.endswith("/data.pkl")]
        tensors: Any = _load(io.BytesIO(archive.read(pickled)))
        folder = pickled.removesuffix(".pkl") + "/"
        names = {n.removeprefix(folder): n for n in archive.namelist() if n.startswith(folder)}
        return _flat(tensors), {key: archive.read(name) for key, name in names.items()}


def _flat(tensors: Any) -> NamedTensors:
    """Return the tensors in nested dicts, with the path of each. Ignore values of other types."""
    named: NamedTensors = []
    characters = 0
    values: list[tuple[str, Any]] = [("", tensors)]
    for path, value in values:
        if isinstance(value, _Tensor):
            named.append((path, value))
        elif isinstance(value, dict):
            inner = cast("dict[Any, Any]", value)
            values += [(f"{path}.{key}" if path else str(key), v) for key, v in inner.items()]
        if len(values) > _MOST_VALUES:  # A dict may occur many times in another dict.
            raise ValueError(f"it holds more than {_MOST_VALUES:,} values")
        characters += len(path)
        if characters > _MOST_CHARACTERS:  # Paths in a dict that contains itself grow forever.
            raise ValueError(f"its names have more than {_MOST_CHARACTERS:,} characters")
    return named
