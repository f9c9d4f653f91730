"""Columns of Arrow tables as NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towerpack._core.extras import require


def column_of(chunked: Any) -> ColumnLike:
    """One column of a table, so that indexing it with an array of rows gives an array.

    Numbers are an array of their dtype, fixed-size lists of numbers one of more axes; everything
    else, and columns with nulls, an array of Python objects. But dates and durations, and times of
    day in nanoseconds, which Python has no type for, are NumPy's, and their nulls NaT.
    """
    pa: Any = require("pyarrow", extra="formats", needed_for="ParquetData")
    if pa.types.is_dictionary(chunked.type):
        chunked = chunked.cast(chunked.type.value_type)
    column = chunked.combine_chunks()
    kind = column.type
    if kind == pa.time64("ns"):
        return column.cast(pa.int64()).cast(pa.duration("ns")).to_numpy(zero_copy_only=False)
    if _is_plain(pa, column):
        return column.to_numpy(zero_copy_only=False)
    lists = (
        pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind)
    )
    if not lists or column.null_count or not _is_plain(pa, column.flatten()):
        return ObjectColumn(column, lambda scalar: scalar.as_py())
    if pa.types.is_fixed_size_list(kind):
        return column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), kind.list_size)
    return ObjectColumn(column, lambda row: row.values.to_numpy(zero_copy_only=False).copy())


class ObjectColumn:
    """Python objects or arrays, made when they are read, so that what is read may be changed.

    Args:
        column: The Arrow array.
        convert: Makes an object of one of its scalars.
    """

    def __init__(self, column: Any, convert: Callable[[Any], Any]) -> None:
        self._column = column
        self._convert = convert
        self.nbytes = int(column.nbytes)

    def __getitem__(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        out = np.empty(len(rows), object)
        for i, row in enumerate(rows.tolist()):
            out[i] = self._convert(self._column[row])
        return out


ColumnLike = NDArray[Any] | ObjectColumn


def _is_plain(pa: Any, column: Any) -> bool:
    """Whether it holds dates, or numbers without nulls."""
    types, kind = pa.types, column.type
    if types.is_timestamp(kind) or types.is_date(kind) or types.is_duration(kind):
        return True
    numbers = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    return numbers and column.null_count == 0
