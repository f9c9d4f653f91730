"""The `.npy` format, read without trusting it: NumPy's own reader believes what headers claim."""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from towerpack._core.errors import FormatError
from towerpack.dataflow._opening import PathLike, reading

HEADER_BYTES = 1 << 16
"""Enough of a file's beginning to hold any header that is read here."""

_MAGIC = b"\x93NUMPY"
_LENGTH_BYTES = {1: 2, 2: 4, 3: 4}
_LONGEST = 10_000  # as NumPy's: what parses longer texts than this can be made to crash


@dataclass(frozen=True)
class NpyHeader:
    """What a header says, once it is known to be possible.

    Attributes:
        dtype: Without Python objects.
        shape: Of the array.
        fortran: The first axis varies fastest.
        offset: Where the numbers begin.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool
    offset: int

    @property
    def nbytes(self) -> int:
        """Bytes of the numbers."""
        return self.dtype.itemsize * math.prod(self.shape)


def parse_npy(data: bytes, path: PathLike, what: str = "an npy file") -> NDArray[Any]:
    """The array in the whole content of a `.npy` file; a view that cannot be written to.

    Raises:
        FormatError: It is damaged, or holds Python objects.
    """
    header = npy_header(data[:HEADER_BYTES], len(data), path, what)
    flat = np.frombuffer(data, header.dtype, math.prod(header.shape), header.offset)
    return flat.reshape(header.shape, order="F" if header.fortran else "C")


def npy_header(start: bytes, nbytes: int, path: PathLike, what: str) -> NpyHeader:
    """Read and check a header.

    Args:
        start: The beginning of the file, `HEADER_BYTES` or all of it.
        nbytes: Size of the whole file; header and numbers must add up to it.
        path: For messages.
        what: For messages, with its article.

    Raises:
        FormatError: It is damaged, or announces Python objects.
    """
    with reading(path, what):
        try:
            fields, offset = _fields(start)
        except (MemoryError, RecursionError) as error:
            raise ValueError("the header cannot be parsed") from error
        header = _checked(fields, offset)
    if header.dtype.hasobject:
        raise FormatError(
            f"{path} holds Python objects, which only pickle could read, and that runs code.",
            got=f"{what} of dtype {header.dtype}",
            expected="numbers, booleans, fixed-size strings",
            fix="store lists of arrays as one array and an array of offsets; or read it with "
            "np.load(..., allow_pickle=True), if you trust the file as you trust a program",
        )
    if header.offset + header.nbytes != nbytes:
        raise FormatError(
            f"{path} cannot be read as {what}: its size does not fit its header.",
            got=f"{nbytes - header.offset:,} bytes of numbers",
            expected=f"{header.nbytes:,} bytes for {header.dtype} {list(header.shape)}",
            fix="the file was cut off or is damaged; write or fetch it again",
        )
    return header


def _fields(start: bytes) -> tuple[dict[str, Any], int]:
    if not start.startswith(_MAGIC) or len(start) < 12:
        raise ValueError("it does not begin as one")
    width = _LENGTH_BYTES.get(start[6])
    if width is None:
        raise ValueError(f"version {start[6]}.{start[7]} is not known")
    length = int.from_bytes(start[8 : 8 + width], "little")
    offset = 8 + width + length
    if length > _LONGEST or offset > len(start):
        raise ValueError(f"a header of {length:,} bytes")
    fields = ast.literal_eval(start[8 + width : offset].decode("utf-8" if width == 4 else "latin1"))
    if not isinstance(fields, dict):
        raise ValueError("the header is no dict")
    return cast("dict[str, Any]", fields), offset


def _checked(fields: dict[str, Any], offset: int) -> NpyHeader:
    shape: Any = fields["shape"]
    fortran: Any = fields["fortran_order"]
    dtype = npy_format.descr_to_dtype(fields["descr"])
    if not isinstance(shape, tuple) or not isinstance(fortran, bool):
        raise ValueError("shape or order are of the wrong type")
    sizes = cast("tuple[Any, ...]", shape)
    if any(type(size) is not int or not 0 <= size < 1 << 62 for size in sizes) or len(sizes) > 32:
        raise ValueError(f"a shape of {shape!r:.80}")
    if dtype.itemsize == 0:
        # NumPy makes something of these that takes memory for each element.
        raise ValueError(f"the dtype {dtype} holds nothing")
    return NpyHeader(dtype, sizes, fortran, offset)
