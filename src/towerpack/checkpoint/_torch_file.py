"""State dicts that PyTorch has saved, read without it and without running what a pickle may say."""

from __future__ import annotations

import collections
import io
import math
import os
import pickle
import zipfile
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


def read_torch_file(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Read the tensors of a `.pth` or `.pt` file, as PyTorch lays them out: [out, in, h, w].

    Both formats of `torch.save` are known. A pickle in it may make dicts and tensors of numbers,
    and nothing else. Tensors in inner dicts are called `inner.name`.

    Raises:
        CheckpointError: It cannot be read, or is more than a state dict.
    """
    try:
        with Path(path).open("rb") as file:
            tensors, data = _from_zip(file) if zipfile.is_zipfile(file) else _from_stream(file)
        return {name: tensor.array(data) for name, tensor in _flat(tensors, "")}
    except (
        *(OSError, EOFError, KeyError, TypeError, ValueError, IndexError, AttributeError),
        *(pickle.UnpicklingError, zipfile.BadZipFile),
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

    def array(self, data: Mapping[str, bytes]) -> np.ndarray:
        dtype = self.storage.dtype
        strides = tuple(stride * dtype.itemsize for stride in self.strides)
        buffer = data[self.storage.key]
        if not math.prod(self.shape):
            return np.empty(self.shape, dtype)
        # NumPy refuses what would reach beyond the buffer.
        return np.ndarray(self.shape, dtype, buffer, self.offset * dtype.itemsize, strides).copy()


def _tensor(
    storage: _Storage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: Any
) -> _Tensor:
    return _Tensor(storage, offset, shape, strides)


def _parameter(tensor: _Tensor, *_: Any) -> _Tensor:
    return tensor


class _Unpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        known: dict[tuple[str, str], Callable[..., Any]] = {
            ("collections", "OrderedDict"): collections.OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2"): _tensor,
            ("torch._utils", "_rebuild_parameter"): _parameter,
        }
        if module_name == "torch" and global_name in _STORAGES:
            return np.dtype(_STORAGES[global_name])
        if (module_name, global_name) not in known:
            raise pickle.UnpicklingError(f"it holds a {module_name}.{global_name}")
        return known[module_name, global_name]

    def persistent_load(self, pid: Any, /) -> _Storage:
        return _Storage(pid[1], str(pid[2]))


def _from_stream(file: BinaryIO) -> tuple[Any, dict[str, bytes]]:
    """The format before PyTorch 1.6: pickles, then the storages in the order of their keys."""
    file.seek(0)
    magic, _, _, tensors, keys = (_Unpickler(file).load() for _ in range(5))
    if magic != _MAGIC:
        raise ValueError("it is no file of PyTorch")
    found = {tensor.storage.key: tensor.storage.dtype for _, tensor in _flat(tensors, "")}
    data: dict[str, bytes] = {}
    for key in keys:
        number = int.from_bytes(file.read(8), "little")
        data[str(key)] = file.read(number * found[str(key)].itemsize)
    return tensors, data


def _from_zip(file: BinaryIO) -> tuple[Any, dict[str, bytes]]:
    with zipfile.ZipFile(file) as archive:
        [pickled] = [n for n in archive.namelist() if n.endswith("/data.pkl")]
        tensors: Any = _Unpickler(io.BytesIO(archive.read(pickled))).load()
        folder = pickled.removesuffix(".pkl") + "/"
        names = {n.removeprefix(folder): n for n in archive.namelist() if n.startswith(folder)}
        return tensors, {key: archive.read(name) for key, name in names.items()}


def _flat(value: Any, path: str) -> list[tuple[str, _Tensor]]:
    """Tensors below a value, by their path; what else there is, such as an epoch, is left out."""
    if isinstance(value, _Tensor):
        return [(path, value)]
    if not isinstance(value, dict):
        return []
    inner = cast("dict[Any, Any]", value)
    below = [_flat(v, f"{path}.{key}" if path else str(key)) for key, v in inner.items()]
    return [found for each in below for found in each]
