"""Datapoints as bytes and back, without pickle: what files and remote data are made of.

    "TPW" 2 | bytes of values (uint32) | values (msgpack) | memory of larger arrays ...

Values are as msgpack has them. What it has no type for is a list that begins with an extension
type, its `_Kind`. A message is either one piece of bytes, where memory lies at multiples of 16, or
a list of frames.
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
# What NumPy stores as plain memory: no Python objects, no fields.
_DTYPE: Final = re.compile(r"[<>|](?:[biufcSU]\d{1,9}|[mM]8(?:\[\d{0,9}[A-Za-z]{1,2}\])?)")
_SMALL: Final = 1024  # what is smaller travels among the values: a frame of its own costs more


class _Kind(IntEnum):
    TUPLE, ARRAY, FRAME, SCALAR, OBJECTS = range(1, 6)


_MARKS: Final = {kind: _msgpack.ExtType(kind, b"") for kind in _Kind}
"""First elements of the lists of each kind."""


def pack(datapoint: Datapoint) -> bytes:
    """A datapoint as one piece of bytes.

    Takes tuples, lists, dicts, `None`, bool, int (up to 64 bits), float, str, bytes, NumPy scalars
    and arrays of them, nested some hundred deep at most, and gives back exactly these types;
    `bytearray` and `memoryview` come back as bytes.

    Raises:
        ConfigError: Something in it is of another type.
    """
    parts = pack_frames(datapoint)
    for place in range(len(parts) - 1, 0, -1):
        parts.insert(place, bytes(-len(parts[place - 1]) % _ALIGNMENT))
    return b"".join(parts)


def pack_frames(datapoint: Datapoint) -> list[Buffer]:
    """`pack` as a header and the raw memory of the larger arrays, which is not copied."""
    frames: list[Buffer] = []
    values = _packed(datapoint, frames)
    return [_PREFIX.pack(_MAGIC, len(values)) + values, *frames]


def pack_values(datapoint: Datapoint) -> bytes:
    """A datapoint as what `pack_list` takes."""
    return _packed(datapoint, None)


def pack_list(packed: Sequence[bytes]) -> bytes:
    """`pack` of a list of datapoints, each of which `pack_values` has packed."""
    values = b"".join([_msgpack.Packer().pack_array_header(len(packed)), *packed])
    return _PREFIX.pack(_MAGIC, len(values)) + values


def unpack(data: Buffer, *, copy: bool = False) -> Datapoint:
    """The datapoint that `pack` made these bytes of.

    Args:
        data: Whole, and nothing after it.
        copy: Give larger arrays memory of their own. Otherwise they are views of `data`, and can
            be written to if `data` can.

    Raises:
        FormatError: The bytes are damaged, or something else.
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
    """The datapoint that `pack_frames` made these frames of; arguments and errors as `unpack`."""
    views = [memoryview(frame).cast("B") for frame in frames]
    rest = iter(views[1:])
    with _damages():
        header = b"".join(views[:1])
        if _PREFIX.size + _values_in(header) != len(header):
            raise ValueError("the first frame is of another length")
        values = memoryview(header)[_PREFIX.size :]
        datapoint = _unpacked(values, lambda nbytes: next(rest, b""), copy)
        if next(rest, None) is not None:
            raise ValueError("frames are left over")
    return datapoint


def _packed(datapoint: Datapoint, frames: list[Buffer] | None) -> bytes:
    """The values of a datapoint, its larger arrays appended to `frames` if that is a list."""

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
                expected="tuples, lists and dicts (not classes derived from them), None, bool, "
                "int of 64 bits, float, str, bytes, NumPy scalars and arrays",
                fix="MapData(ds, f) to make one of these of it; files can be written with "
                'format="pickle"',
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
    except ValueError as error:  # of msgpack; ours are ConfigErrors, which are raised through it
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"A datapoint cannot be packed: {error}.",
            got=describe(datapoint),
            fix="nest it less, or give 4 GB of bytes in parts",
        ) from error


def _unpacked(values: memoryview, take: Callable[[int], Buffer], copy: bool) -> Datapoint:
    """The datapoint of its values; `take` gives the next so many bytes of memory."""

    def made(items: list[Any]) -> Any:
        kind = items[0] if items else None
        if kind.__class__ is not _Kind:
            return items
        if kind is _Kind.TUPLE:
            return tuple(items[1:])
        if kind is _Kind.OBJECTS:
            _, shape, objects = items
            flat: Any = np.empty(len(objects), object)
            for index, item in enumerate(objects):
                flat[index] = item  # not all at once: NumPy would look into lists
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
        list_hook=made,
        strict_map_key=False,
        unicode_errors="surrogatepass",
    )


def _values_in(header: Buffer) -> int:
    """How many bytes of values follow the prefix."""
    magic, nbytes = _PREFIX.unpack_from(header)
    if magic != _MAGIC:
        raise ValueError("it does not begin as one, or is of another version")
    return nbytes


@lru_cache(maxsize=256)
def _dtype_name(dtype: np.dtype[Any]) -> str:
    if not _DTYPE.fullmatch(dtype.str) or dtype.itemsize == 0:
        raise ConfigError(
            f"An array of dtype {str(dtype)[:80]} cannot be packed.",
            expected="numbers, booleans, strings, dates",
            fix="give the fields of a structured array one by one; view others as plain numbers",
        )
    return dtype.str


@lru_cache(maxsize=256)
def _dtype(name: str) -> np.dtype[Any]:
    if not _DTYPE.fullmatch(name):  # NumPy would evaluate some of the other texts
        raise ValueError(f"there is no dtype {name!r:.40}")
    return np.dtype(name)


@contextlib.contextmanager
def _damages() -> Generator[None]:
    """Turn what wrong bytes lead to into a `FormatError`."""
    try:
        yield
    # Ours are ValueErrors, as are most of msgpack's and NumPy's.
    except (ValueError, TypeError, OverflowError, struct.error) as error:
        raise FormatError(
            f"This is no packed datapoint, or a damaged one: {error}.",
            fix="it was cut off, changed, or written by something else; make it again",
        ) from error
