"""Serialization of datapoints without pickle, for files and network connections.

    "TPW" 2 | size of the values (uint32) | values (msgpack) | memory of larger arrays ...

A list that begins with a `_Kind` stands for a type that msgpack does not have. A message is either
one byte string, with array memory at multiples of 16, or a list of frames.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import re
import struct
from collections.abc import Callable, Generator, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError, FormatError
from towerpack.dataflow.datapoints import Datapoint, describe

_msgpack: Any = importlib.import_module("msgpack")  # has no types

Buffer = bytes | bytearray | memoryview

_MAGIC: Final = b"TPW\x02"
_PREFIX: Final = struct.Struct("<4sI")
_ALIGNMENT: Final = 16
# Dtypes that NumPy stores as plain memory, without Python objects or fields.
_DTYPE: Final = re.compile(r"[<>|](?:[biufcSU]\d{1,9}|[mM]8(?:\[\d{0,9}[A-Za-z]{1,2}\])?)")
_SMALL: Final = 1024  # smaller arrays are stored among the values, which costs less than a frame


class _Kind(IntEnum):
    TUPLE, ARRAY, FRAME, SCALAR, OBJECTS = range(1, 6)


_MARKS: Final = {kind: _msgpack.ExtType(kind, b"") for kind in _Kind}  # first elements of lists


def pack(datapoint: Datapoint) -> bytes:
    """Serialize a datapoint to bytes.

    `unpack` returns exactly the same types, except that `bytearray` and `memoryview` become bytes.

    Args:
        datapoint: Tuples, lists and dicts, nested up to a few hundred levels, of `None`, bool, int
            (up to 64 bits), float, str, bytes, NumPy scalars and arrays.

    Raises:
        ConfigError: The datapoint contains another type.
    """
    parts = pack_frames(datapoint)
    for place in range(len(parts) - 1, 0, -1):
        parts.insert(place, bytes(-len(parts[place - 1]) % _ALIGNMENT))
    return b"".join(parts)


def pack_frames(datapoint: Datapoint) -> list[Buffer]:
    """Serialize a datapoint to a header and the memory of larger arrays, which is not copied.

    Args:
        datapoint: See `pack`.
    """
    frames: list[Buffer] = []
    values = _packed(datapoint, frames)
    return [_PREFIX.pack(_MAGIC, len(values)) + values, *frames]


def pack_values(datapoint: Datapoint) -> bytes:
    return _packed(datapoint, None)


def pack_list(packed: Sequence[bytes]) -> bytes:
    """Serialize a list of datapoints, each of which was serialized by `pack_values`."""
    values = b"".join([_msgpack.Packer().pack_array_header(len(packed)), *packed])
    return _PREFIX.pack(_MAGIC, len(values)) + values


def unpack(data: Buffer, *, copy: bool = False) -> Datapoint:
    """Restore a datapoint from the bytes of `pack`.

    Args:
        data: The bytes of `pack`, and nothing after them.
        copy: Copy larger arrays. Otherwise, they are views of `data`, and are writable if `data`
            is.

    Raises:
        FormatError: The bytes are damaged, or not from `pack`. It is a `ValueError`.
    """
    view = memoryview(data).cast("B")
    end = 0

    def take(nbytes: int) -> memoryview:
        nonlocal end
        start = end + -end % _ALIGNMENT
        end = start + nbytes
        return view[start:end]

    with _damages():
        values = _values_in(take(_PREFIX.size))
        end = _PREFIX.size + values
        datapoint = _unpacked(view[_PREFIX.size : end], take, copy)
        if end != len(view):
            raise ValueError(f"{len(view):,} bytes instead of {end:,}")
    return datapoint


def unpack_frames(frames: Sequence[Buffer], *, copy: bool = False) -> Datapoint:
    """Restore a datapoint from the frames of `pack_frames`.

    Args:
        frames: All frames in their order.
        copy: Copy larger arrays. Otherwise, they are views of the frames.

    Raises:
        FormatError: The frames are damaged, or not from `pack_frames`. It is a `ValueError`.
    """
    views = [memoryview(frame).cast("B") for frame in frames]
    rest = iter(views[1:])
    with _damages():
        header = b"".join(views[:1])
        if _PREFIX.size + _values_in(header) != len(header):
            raise ValueError("the first frame has the wrong length")
        values = memoryview(header)[_PREFIX.size :]
        datapoint = _unpacked(values, lambda nbytes: next(rest, b""), copy)
        if next(rest, None) is not None:
            raise ValueError("there are too many frames")
    return datapoint


def _packed(datapoint: Datapoint, frames: list[Buffer] | None) -> bytes:
    """Serialize the values of a datapoint. Append larger arrays to `frames`, if not None."""

    def other(value: Any) -> list[Any]:
        kind = cast("type[Any]", value.__class__)
        if kind is tuple:
            return [_MARKS[_Kind.TUPLE], *value]
        if isinstance(value, np.generic):
            array: NDArray[Any] = np.asarray(cast("Any", value))
            return [_MARKS[_Kind.SCALAR], _dtype_name(array.dtype), [], array.tobytes()]
        if kind is not np.ndarray and kind is not np.memmap:
            bits = f" of {value.bit_length()} bits" if isinstance(value, int) else ""
            raise ConfigError(
                f"A value of type {kind.__name__}{bits} cannot be packed.",
                got=describe(value),
                expected="tuples, lists and dicts (no subclasses), None, bool, 64-bit int, float, "
                "str, bytes, NumPy scalars and arrays",
                fix='convert the value with MapData(ds, f), or write files with format="pickle"',
            )
        if value.dtype.char == "O":
            return [_MARKS[_Kind.OBJECTS], list(value.shape), value.ravel().tolist()]
        name = _dtype_name(value.dtype)
        if frames is None or value.nbytes < _SMALL:
            return [_MARKS[_Kind.ARRAY], name, list(value.shape), value.tobytes()]
        frames.append(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
        return [_MARKS[_Kind.FRAME], name, list(value.shape)]

    try:
        return _msgpack.packb(
            datapoint, default=other, strict_types=True, unicode_errors="surrogatepass"
        )
    except ValueError as error:  # raised by msgpack, or a ConfigError of `other`
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"A datapoint cannot be packed: {error}.",
            got=describe(datapoint),
            fix="reduce the nesting, or split values of more than 4 GB",
        ) from error


def _unpacked(values: memoryview, take: Callable[[int], Buffer], copy: bool) -> Datapoint:
    """Deserialize a datapoint. `take(n)` returns the next n bytes of array memory."""

    def convert(items: list[Any]) -> Any:
        kind = items[0] if items else None
        if kind.__class__ is not _Kind:
            return items
        if kind is _Kind.TUPLE:
            return tuple(items[1:])
        if kind is _Kind.OBJECTS:
            _, shape, objects = items
            flat: Any = np.empty(len(objects), object)
            for index, item in enumerate(objects):
                flat[index] = item  # NumPy would convert nested lists in a bulk assignment
            return flat.reshape(shape)
        _, name, *rest = items
        dtype = _dtype(name)
        if kind is _Kind.FRAME:
            (shape,) = rest
            raw = take(dtype.itemsize * math.prod(shape))
        else:
            shape, raw = rest
        array: NDArray[Any] = np.frombuffer(raw, dtype).reshape(shape)
        if kind is _Kind.SCALAR:
            return array[()]
        return array.copy() if copy or kind is _Kind.ARRAY else array

    def kind_of(code: int, data: bytes) -> _Kind:
        return _Kind(code)

    return _msgpack.unpackb(
        values,
        ext_hook=kind_of,
        list_hook=convert,
        strict_map_key=False,
        unicode_errors="surrogatepass",
    )


def _values_in(header: Buffer) -> int:
    magic, nbytes = _PREFIX.unpack_from(header)
    if magic != _MAGIC:
        raise ValueError("the first bytes are wrong, or of another version")
    return nbytes


@lru_cache(maxsize=256)
def _dtype_name(dtype: np.dtype[Any]) -> str:
    if not _DTYPE.fullmatch(dtype.str) or dtype.itemsize == 0:
        raise ConfigError(
            f"An array of dtype {str(dtype)[:80]} cannot be packed.",
            expected="numbers, booleans, strings, dates",
            fix="split structured arrays into their fields, and view others as plain numbers",
        )
    return dtype.str


@lru_cache(maxsize=256)
def _dtype(name: str) -> np.dtype[Any]:
    if not _DTYPE.fullmatch(name):  # NumPy would evaluate some other texts
        raise ValueError(f"the dtype {name!r:.40} is unknown")
    return np.dtype(name)


@contextlib.contextmanager
def _damages() -> Generator[None]:
    """Convert errors that damaged bytes cause to `FormatError`."""
    try:
        yield
    except (ValueError, TypeError, OverflowError, struct.error) as error:
        raise FormatError(
            f"The data is not a valid packed datapoint: {error}.",
            fix="check the source of the data, and write or send it again",
        ) from error
