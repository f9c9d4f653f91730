"""MATLAB's MAT-files of level 5, read without trusting a length in them.

"MAT-File Format", MathWorks, chapter 1. What data sets use: numbers, text, cells and structures.
Written here because SciPy's reader allocates what a damaged file says.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import FormatError
from towerpack.dataflow._opening import check_expansion, reading

_HEADER = 128
_HDF5 = b"MATLAB 7.3"
_MATRIX, _COMPRESSED = 14, 15
_TYPES = {
    1: "i1",
    2: "u1",
    3: "i2",
    4: "u2",
    5: "i4",
    6: "u4",
    7: "f4",
    9: "f8",
    12: "i8",
    13: "u8",
}
_TEXTS = {2: "latin-1", 4: "utf-16", 16: "utf-8", 17: "utf-16", 18: "utf-32"}
_CELL, _STRUCT, _CHAR = 1, 2, 4
_NUMBERS = {
    6: "f8",
    7: "f4",
    8: "i1",
    9: "u1",
    10: "i2",
    11: "u2",
    12: "i4",
    13: "u4",
    14: "i8",
    15: "u8",
}
_COMPLEX = 0x800
_DEEPEST = 8
_MOST_ELEMENTS = 100_000  # of a cell; each one is an object, however little it holds
_MOST_AXES = 32
_TAG = 8


def read_mat(path: Path, names: Sequence[str]) -> list[Any]:
    """Variables of a MAT-file.

    Numbers become arrays, text `str`, cells lists of their elements and structures lists of
    dicts, both in MATLAB's order.

    Args:
        path: The file.
        names: Which variables.

    Returns:
        One value for each name.

    Raises:
        FormatError: The file is damaged, of version 7.3, or does not have them.
    """
    found: dict[str, Any] = {}
    with open(path, "rb") as file, reading(path, "a MAT-file"):
        order = _byte_order(path, file.read(_HEADER))
        while tag := file.read(_TAG):
            kind, nbytes = struct.unpack(f"{order}2I", tag)
            if nbytes > path.stat().st_size:
                raise ValueError(f"a variable of {nbytes:,} bytes")
            data = file.read(nbytes)
            if len(data) < nbytes:
                raise ValueError("it ends within a variable")
            if kind == _COMPRESSED:
                data = _inflated(data, order, path)
            elif kind != _MATRIX:
                raise ValueError(f"a variable of type {kind}")
            matrix = _Matrix(data, order)
            if matrix.name in names:
                found[matrix.name] = matrix.value()
    missing = [name for name in names if name not in found]
    if missing:
        raise FormatError(
            f"{path} has no variable {missing[0]!r}.",
            fix="the file is of another data set; delete it and fetch it again",
        )
    return [found[name] for name in names]


def read_arrays(path: Path, names: Sequence[str]) -> list[NDArray[Any]]:
    """As `read_mat`, for variables that have to be numbers.

    Raises:
        FormatError: The file is damaged or does not have them.
    """
    values = read_mat(path, names)
    for name, value in zip(names, values, strict=True):
        if not isinstance(value, np.ndarray):
            raise FormatError(
                f"{name} in {path} is a {type(value).__name__}.", expected="an array of numbers"
            )
    return values


def _byte_order(path: Path, header: bytes) -> str:
    if header.startswith(_HDF5):
        raise FormatError(
            f"{path} is a MAT-file of version 7.3.", expected="version 7 or below", fix="h5py"
        )
    order = {b"IM": "<", b"MI": ">"}.get(header[126:128])
    if order is None:
        raise ValueError("it does not begin as one")
    return order


def _inflated(data: bytes, order: str, path: Path) -> memoryview:
    """A compressed variable without its tag, which tells how long it is."""
    inflate = zlib.decompressobj()
    tag = inflate.decompress(data, _TAG)
    kind, nbytes = struct.unpack(f"{order}2I", tag)
    if kind != _MATRIX:
        raise ValueError(f"a compressed variable of type {kind}")
    check_expansion(nbytes, len(data), "a compressed variable", path)
    # A longer one would be an error too, but nobody reads what lies behind its end.
    content = inflate.decompress(inflate.unconsumed_tail, nbytes) if nbytes else b""
    if len(content) != nbytes:
        raise ValueError("a compressed variable is cut off")
    return memoryview(content)


class _Matrix:
    """One array of any kind.

    Args:
        data: Its bytes, without a tag.
        order: `<` or `>`.
        depth: How many others it lies in.
    """

    def __init__(self, data: bytes | memoryview, order: str, depth: int = 0) -> None:
        self._order = order
        self._depth = depth
        self._rest = memoryview(data)
        self._kind, self._is_complex, self.shape, self.name = 0, False, (0, 0), ""
        if depth > _DEEPEST:
            raise ValueError(f"cells within cells, more than {_DEEPEST} deep")
        if len(data):
            self._read_head()

    def value(self) -> Any:
        """What it holds."""
        size = math.prod(self.shape)
        if self._kind == 0:  # nothing was written for an empty cell
            return np.zeros((0, 0))
        if self._kind in _NUMBERS:
            return self._numbers()
        if self._kind == _CHAR:
            kind, raw = self._element()
            return bytes(raw).decode(self._text_code(kind))
        if self._kind == _CELL:
            return list(self._inner(size))
        if self._kind == _STRUCT:
            fields = self._fields()
            values = list(self._inner(size * len(fields)))
            rows = [values[i : i + len(fields)] for i in range(0, len(values), len(fields) or 1)]
            return [dict(zip(fields, row, strict=True)) for row in rows]
        raise ValueError(f"{self.name or 'something'} is of class {self._kind}, which is not read")

    def _read_head(self) -> None:
        flags = int(self._array("u4")[0])
        shape = self._array("i4").tolist()
        if not 2 <= len(shape) <= _MOST_AXES or min(shape) < 0:
            raise ValueError(f"an array of shape {shape[:_MOST_AXES]}")
        self._kind, self._is_complex = flags & 0xFF, bool(flags & _COMPLEX)
        self.shape = tuple(shape)
        self.name = bytes(self._element()[1]).decode("latin-1")

    def _numbers(self) -> NDArray[Any]:
        if self._is_complex:
            raise ValueError(f"{self.name or 'an array'} is complex, which is not read")
        kind, raw = self._element()
        # Whole numbers are stored in as few bytes as hold them, whatever the array's class.
        values = np.frombuffer(raw, self._order + _TYPES[kind])
        wanted = np.dtype(_NUMBERS[self._kind])
        return values.astype(wanted, copy=False).reshape(self.shape, order="F")

    def _fields(self) -> list[str]:
        width = int(self._array("i4")[0])
        names = bytes(self._element()[1])
        if width < 1 or len(names) % width:
            raise ValueError(f"field names of {width} bytes in {len(names)}")
        parts = [names[i : i + width] for i in range(0, len(names), width)]
        return [part.split(b"\0", 1)[0].decode("latin-1") for part in parts]

    def _inner(self, count: int) -> Iterator[Any]:
        if count > _MOST_ELEMENTS or count * _TAG > len(self._rest):
            raise ValueError(f"{count:,} elements in {len(self._rest):,} bytes")
        for _ in range(count):
            kind, data = self._element()
            if kind != _MATRIX:
                raise ValueError(f"an element of type {kind}")
            yield _Matrix(data, self._order, self._depth + 1).value()

    def _array(self, expected: str) -> NDArray[Any]:
        kind, raw = self._element()
        if _TYPES.get(kind) != expected or not len(raw):
            raise ValueError(f"a header of type {kind} and {len(raw)} bytes")
        return np.frombuffer(raw, self._order + expected)

    def _element(self) -> tuple[int, memoryview]:
        """Type and bytes of the next part; up to four bytes lie within the tag."""
        (first,) = struct.unpack_from(f"{self._order}I", self._rest)
        if first >> 16:
            kind, nbytes, start, step = first & 0xFFFF, first >> 16, 4, _TAG
        else:
            kind, (nbytes,) = first, struct.unpack_from(f"{self._order}I", self._rest, 4)
            start, step = _TAG, _TAG + (nbytes + 7) // 8 * 8
        if start + nbytes > min(len(self._rest), step):
            raise ValueError(f"{nbytes:,} bytes where {len(self._rest) - start:,} are left")
        raw = self._rest[start : start + nbytes]
        self._rest = self._rest[step:]
        return kind, raw

    def _text_code(self, kind: int) -> str:
        code = _TEXTS[kind]
        return (
            code
            if code in ("latin-1", "utf-8")
            else code + ("-le" if self._order == "<" else "-be")
        )
