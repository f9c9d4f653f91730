"""Datapoints taken apart into codes, values and memory, and put together again."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError
from towerpack.dataflow._datapoints import Datapoint, describe

Buffer = bytes | bytearray | memoryview

_DEEPEST: Final = 64
# Bounds: of what stands before the values, of a value without text or memory, of an alignment.
_MOST_HEAD: Final = 32
_MOST_VALUE: Final = 16
_MOST_GAP: Final = 16
_SMALL: Final = 1024  # what is smaller travels among the values: a frame of its own costs more

_LEAST_INT: Final = -(1 << 63)
_MOST_INT: Final = (1 << 64) - 1
PLAIN: Final[frozenset[type[Any]]] = frozenset((type(None), bool, int, float, str, bytes))
# What NumPy stores as plain memory: no Python objects, no fields.
_DTYPE: Final = re.compile(r"[<>|](?:[biufcSU]\d{1,9}|[mM]8(?:\[\d{0,9}[A-Za-z]{1,2}\])?)")

_VALUE, _TEXT, _BYTES, _ARRAY, _SMALL_ARRAY, _SCALAR, _OBJECTS, _LIST, _TUPLE, _DICT = b"vsbaigoltd"


class Writer:
    """Takes a datapoint apart.

    Attributes:
        codes: What is there.
        values: The rest, which does not change any more if the datapoint does.
        frames: The memory of its larger components.
    """

    __slots__ = ("_nbytes", "codes", "frames", "values")

    def __init__(self) -> None:
        self.codes = bytearray()
        self.values: list[Any] = []
        self.frames: list[Buffer] = []
        self._nbytes = 0

    @property
    def nbytes(self) -> int:
        """What it takes in one piece, at most: a little more than it will."""
        nbytes = _MOST_HEAD + len(self.codes) + _MOST_VALUE * len(self.values) + self._nbytes
        for frame in self.frames:
            nbytes += len(frame) + _MOST_GAP
        return nbytes

    def keep(self) -> None:
        """Copy the memory that is the datapoint's still."""
        if self.frames:
            self.frames = [bytes(frame) for frame in self.frames]

    def add(self, value: Any, depth: int) -> None:
        # Every small datapoint comes through here: the common kinds are asked for first.
        kind = cast("type[Any]", value.__class__)
        if kind is tuple or kind is list:
            self._items(_TUPLE if kind is tuple else _LIST, value, depth)
        elif kind is bytes or kind is str:
            self._text(value, kind)
        elif kind is int or kind in PLAIN:
            if kind is int and not _LEAST_INT <= value <= _MOST_INT:
                raise _too_large(value)
            self.codes.append(_VALUE)
            self.values.append(value)
        elif kind is np.ndarray or kind is np.memmap:
            self._array(value, depth)
        elif kind is dict:
            self._items(_DICT, [item for pair in value.items() for item in pair], depth)
        elif isinstance(value, np.generic):
            array: NDArray[Any] = np.asarray(cast("Any", value))
            self.codes.append(_SCALAR)
            self.values += (_dtype_name(array.dtype), array.tobytes())
            self._nbytes += array.nbytes
        else:
            raise _unpackable(value)

    def _text(self, value: Any, kind: type[Any]) -> None:
        nbytes = len(value)
        if nbytes < _SMALL:
            self.codes.append(_VALUE)
            self.values.append(value)
            self._nbytes += nbytes if kind is bytes or value.isascii() else 4 * nbytes
        elif kind is bytes:
            self._blob(_BYTES, value)
        else:
            self._blob(_TEXT, value.encode("utf-8", "surrogatepass"))

    def _blob(self, code: int, value: bytes) -> None:
        self.codes.append(code)
        self.values.append(len(value))
        self.frames.append(value)

    def _items(self, code: int, items: Sequence[Any], depth: int) -> None:
        if depth >= _DEEPEST:
            raise ConfigError(f"A datapoint nested more than {_DEEPEST} deep cannot be packed.")
        self.codes.append(code)
        self.values.append(len(items))
        for item in items:
            self.add(item, depth + 1)

    def _array(self, array: NDArray[Any], depth: int) -> None:
        if array.dtype.char == "O":
            self.values += (array.ndim, *array.shape)
            # The shape is written by now: the values of a list's length follow it.
            self._items(_OBJECTS, array.ravel().tolist(), depth)
            return
        self.values += (_dtype_name(array.dtype), array.ndim, *array.shape)
        if array.nbytes < _SMALL:
            self.codes.append(_SMALL_ARRAY)
            self.values.append(array.tobytes())
            self._nbytes += array.nbytes
        else:
            self.codes.append(_ARRAY)
            memory = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            self.frames.append(memory.data)


class Reader:
    """Puts a datapoint together again; believes nothing.

    Args:
        codes: What is there.
        values: The rest.
        take: The next so many bytes of memory.
        copy: Copy arrays out of that memory.
    """

    def __init__(
        self,
        codes: bytes,
        values: Iterator[Any],
        take: Callable[[int], memoryview],
        copy: bool,
    ) -> None:
        self._codes = codes
        self._values = values
        self._take = take
        self._copy = copy
        self._at = 0

    def whole(self, count: int) -> list[Datapoint]:
        """So many datapoints, if nothing is left over."""
        if count > len(self._codes):
            raise ValueError(f"{count:,} datapoints of {len(self._codes):,} values")
        datapoints = [self._next(0) for _ in range(count)]
        if self._at != len(self._codes) or next(self._values, self) is not self:
            raise ValueError("values are left over")
        return datapoints

    def _next(self, depth: int) -> Any:
        code = self._codes[self._at]
        self._at += 1
        if code == _TUPLE:
            return tuple(self._items(depth))
        if code == _LIST:
            return self._items(depth)
        if code == _VALUE:
            value = next(self._values)
            if type(value) not in PLAIN:
                raise ValueError(f"a value of type {type(value).__name__}")
            return value
        if code in (_ARRAY, _SMALL_ARRAY):
            return self._array(code == _ARRAY)
        if code == _DICT:
            return self._dict(depth)
        if code in (_TEXT, _BYTES):
            raw = self._take(self._count())
            return bytes(raw) if code == _BYTES else str(raw, "utf-8", "surrogatepass")
        if code == _SCALAR:
            dtype, raw = _dtype(self._value(str)), self._value(bytes)
            return np.frombuffer(_exactly(raw, dtype.itemsize), dtype)[0]
        if code == _OBJECTS:
            return self._objects(depth)
        raise ValueError(f"there is no code {code}")

    def _value(self, kind: type[Any]) -> Any:
        value = next(self._values)
        if type(value) is not kind:
            raise ValueError(f"a {type(value).__name__} instead of a {kind.__name__}")
        return value

    def _count(self) -> int:
        count = next(self._values)
        if type(count) is not int or not 0 <= count < 1 << 62:
            raise ValueError(f"a number of {count!r:.40}")
        return count

    def _shape(self) -> tuple[int, ...]:
        ndim = self._count()
        if ndim > 64:
            raise ValueError(f"an array of {ndim} dimensions")
        return tuple([self._count() for _ in range(ndim)])

    def _array(self, large: bool) -> NDArray[Any]:
        dtype = _dtype(self._value(str))
        shape = self._shape()
        nbytes = math.prod(shape) * dtype.itemsize
        raw = self._take(nbytes) if large else _exactly(self._value(bytes), nbytes)
        array: NDArray[Any] = np.ndarray(shape, dtype, raw)
        return array if large and not self._copy else array.copy()

    def _items(self, depth: int) -> list[Any]:
        count = self._count()
        if count > len(self._codes) - self._at:
            raise ValueError(f"{count:,} items where {len(self._codes) - self._at:,} are left")
        if depth >= _DEEPEST:
            raise ValueError(f"it is nested more than {_DEEPEST} deep")
        end = self._at + count
        if self._codes.count(_VALUE, self._at, end) < count:
            return [self._next(depth + 1) for _ in range(count)]
        self._at = end  # the same at once, as all of them are plain
        items = list(islice(self._values, count))
        if len(items) < count:
            raise IndexError
        if not PLAIN.issuperset(map(type, items)):
            raise ValueError("a value that is not plain")
        return items

    def _dict(self, depth: int) -> dict[Any, Any]:
        items = self._items(depth)
        pairs = dict(zip(items[::2], items[1::2], strict=True))
        if 2 * len(pairs) != len(items):
            raise ValueError("a key comes twice")
        return pairs

    def _objects(self, depth: int) -> NDArray[Any]:
        shape = self._shape()
        items = self._items(depth)
        if math.prod(shape) != len(items):
            raise ValueError(f"{len(items):,} objects for a shape of {list(shape)}")
        flat = np.empty(len(items), object)
        for index, item in enumerate(items):
            flat[index] = item  # not all at once: NumPy would look into lists
        return flat.reshape(shape)


@lru_cache(maxsize=256)
def _dtype_name(dtype: np.dtype[Any]) -> str:
    if _DTYPE.fullmatch(dtype.str) is None or dtype.itemsize == 0:
        raise ConfigError(
            f"An array of dtype {str(dtype)[:80]} cannot be packed.",
            expected="numbers, booleans, strings, dates",
            fix="give the fields of a structured array one by one; view others as plain numbers",
        )
    return dtype.str


@lru_cache(maxsize=256)
def _dtype(name: str) -> np.dtype[Any]:
    dtype = np.dtype(name) if _DTYPE.fullmatch(name) else None
    if dtype is None or dtype.itemsize == 0:
        raise ValueError(f"there is no dtype {name!r:.40}")
    return dtype


def _exactly(raw: bytes, nbytes: int) -> bytes:
    if len(raw) != nbytes:
        raise ValueError(f"{len(raw):,} bytes instead of {nbytes:,}")
    return raw


def _too_large(value: int) -> ConfigError:
    return ConfigError(
        f"An integer of {value.bit_length()} bits cannot be packed.",
        expected="-2**63 to 2**64 - 1",
        fix="give it as str or bytes",
    )


def _unpackable(value: Any) -> ConfigError:
    return ConfigError(
        f"A value of type {type(value).__name__} cannot be packed.",
        got=f"{describe(value)}: {value!r:.60}",
        expected="tuples, lists and dicts (not classes derived from them), None, bool, int, float, "
        "str, bytes, NumPy scalars and arrays",
        fix='MapData(ds, f) to make one of these of it; files can be written with format="pickle"',
    )
