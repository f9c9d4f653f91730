"""Columns of Arrow tables as NumPy arrays."""

from __future__ import annotations

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
    column = chunked.combine_chunks() if chunked.num_chunks != 1 else chunked.chunk(0)
    if (plain := _without_views(pa, column.type)) != column.type:
        column = column.cast(plain)
    if isinstance(column, pa.ChunkedArray):  # without a chunk, or with more than fit into one
        column = pa.concat_arrays([*column.chunks, pa.array([], column.type)])
    kind = column.type
    if kind == pa.time64("ns"):
        return column.cast(pa.int64()).cast(pa.duration("ns")).to_numpy(zero_copy_only=False)
    if _dates(pa, kind) or (_numbers(pa, kind) and column.null_count == 0):
        return column.to_numpy(zero_copy_only=False)
    if pa.types.is_fixed_size_list(kind) and _flat(pa, column):
        return column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), kind.list_size)
    if _list(pa, kind) and _flat(pa, column):
        values = column.flatten().to_numpy(zero_copy_only=False)
        offsets = column.offsets.to_numpy().astype(np.int64)
        return RaggedColumn(values, offsets - offsets[0])
    return ObjectColumn(column)


class RaggedColumn:
    """Lists of numbers, flat; indexing copies, so that what is read may be changed.

    Args:
        values: Of all lists.
        offsets: Where each list begins, and where the last ends.
    """

    def __init__(self, values: NDArray[Any], offsets: NDArray[np.int64]) -> None:
        self._values = values
        self._offsets = offsets
        self.nbytes = values.nbytes + offsets.nbytes

    def __getitem__(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        out = np.empty(len(rows), object)
        bounds = zip(self._offsets[rows].tolist(), self._offsets[rows + 1].tolist(), strict=True)
        for i, (start, end) in enumerate(bounds):
            out[i] = self._values[start:end].copy()
        return out


class ObjectColumn:
    """Python objects, made when they are read.

    Args:
        column: The Arrow array.
    """

    def __init__(self, column: Any) -> None:
        self._column = column
        self.nbytes = int(column.nbytes)

    def __getitem__(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        out = np.empty(len(rows), object)
        for i, value in enumerate(self._column.take(rows).to_pylist()):
            out[i] = value
        return out


ColumnLike = NDArray[Any] | RaggedColumn | ObjectColumn


def _numbers(pa: Any, kind: Any) -> bool:
    types = pa.types
    return types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)


def _dates(pa: Any, kind: Any) -> bool:
    types = pa.types
    return types.is_timestamp(kind) or types.is_date(kind) or types.is_duration(kind)


def _list(pa: Any, kind: Any) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)


def _flat(pa: Any, column: Any) -> bool:
    """Whether lists are of numbers or dates and none is null, nor a number in them."""
    kind = column.type.value_type
    if column.null_count:
        return False
    return _dates(pa, kind) or (_numbers(pa, kind) and column.flatten().null_count == 0)


def _without_views(pa: Any, kind: Any) -> Any:
    """A type that Arrow can take rows of: strings and lists as they are, not views of them."""
    types = pa.types
    if types.is_string_view(kind):
        return pa.large_string()
    if types.is_binary_view(kind):
        return pa.large_binary()
    if types.is_list(kind):
        return pa.list_(_field_without_views(pa, kind.value_field))
    if types.is_large_list(kind):
        return pa.large_list(_field_without_views(pa, kind.value_field))
    if types.is_struct(kind):
        return pa.struct([_field_without_views(pa, kind.field(i)) for i in range(kind.num_fields)])
    return kind


def _field_without_views(pa: Any, field: Any) -> Any:
    return field.with_type(_without_views(pa, field.type))
