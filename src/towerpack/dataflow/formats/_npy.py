"""The `.npy` format in memory and in parts of files, where `numpy.load` cannot map it."""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from towerpack._core.errors import FormatError
from towerpack.dataflow._opening import PathLike, reading

HEADER_BYTES: Final = 1 << 16
"""Enough of a file's beginning to hold any header that is read here."""

_MAGIC: Final = b"\x93NUMPY"
_LONGEST: Final = 10_000  # as NumPy's: what parses longer texts than this can be made to crash


@dataclass(frozen=True)
class NpyHeader:
    """What a header says, once it fits the size of its file.

    Attributes:
        dtype: Without Python objects.
        shape: Of the array.
        order: "F" if the first axis varies fastest.
        offset: Where the numbers begin.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    order: Literal["C", "F"]
    offset: int


def parse_npy(data: bytes, path: PathLike, what: str = "an npy file") -> NDArray[Any]:
    """The array in the whole content of a `.npy` file; a view that cannot be written to.

    Raises:
        FormatError: It is damaged, or holds Python objects.
    """
    header = npy_header(data[:HEADER_BYTES], len(data), path, what)
    with reading(path, what):
        return np.ndarray(header.shape, header.dtype, data, header.offset, order=header.order)


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
        if not start.startswith(_MAGIC):
            raise ValueError("it does not begin as one")
        width = 2 if start[6] == 1 else 4
        length = int.from_bytes(start[8 : 8 + width], "little")
        offset = 8 + width + length
        if length > _LONGEST:
            raise ValueError(f"a header of {length:,} bytes")
        try:
            text = start[8 + width : offset].decode("utf-8" if start[6] == 3 else "latin1")
            fields: dict[str, Any] = ast.literal_eval(text)
        except (MemoryError, RecursionError) as error:
            raise ValueError("the header cannot be parsed") from error
        dtype = npy_format.descr_to_dtype(fields["descr"])
        shape = tuple(int(size) for size in fields["shape"])
        if dtype.hasobject:
            raise FormatError(
                f"{path} holds Python objects, which only pickle could read, and that runs code.",
                got=f"{what} of dtype {dtype}",
                expected="numbers, booleans, fixed-size strings",
                fix="store lists of arrays as one array and an array of offsets; or read it with "
                "np.load(..., allow_pickle=True), if you trust the file as you trust a program",
            )
        claimed = dtype.itemsize * math.prod(shape)
        if min(shape, default=0) < 0 or dtype.itemsize == 0 or offset + claimed != nbytes:
            raise ValueError(f"{nbytes - offset:,} bytes of numbers for {dtype} {list(shape)}")
        return NpyHeader(dtype, shape, "F" if fields["fortran_order"] else "C", offset)
