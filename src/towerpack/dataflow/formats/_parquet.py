from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError, FormatError
from towerpack._core.extras import require
from towerpack.dataflow._plan import Node
from towerpack.dataflow._user_files import (
    AnyFile,
    PathLike,
    PerProcess,
    check_expansion,
    files_of,
    reading,
)
from towerpack.dataflow.arguments import names_of
from towerpack.dataflow.datapoints import Block, Columns, Positions, as_array, read_groups
from towerpack.dataflow.formats._indexed_files import IndexedFiles, each_of


class ParquetData(IndexedFiles):
    """Source of Parquet files: datapoint i is row i of their table.

    Files are decoded by row groups, and each process caches up to `cache_bytes` of decoded groups.
    In order, each group is decoded once. Shuffled reading of a larger table decodes a group for
    almost every datapoint: then use `LocallyShuffleData`, or write smaller groups.

    Numbers and lists of numbers become arrays, strings `str`, binary values `bytes`, structs dicts,
    and nulls `None`. Dates, timestamps and durations become `datetime64` and `timedelta64`, with
    NaT as null, and times of day in nanoseconds a `timedelta64` since midnight. Thread- and
    fork-safe; resumes at once.

    Args:
        paths: One file, several with the same schema, or a pattern such as `train-*.parquet`.
        columns: Columns in the order of the components; datapoints are then tuples. By default,
            datapoints are dicts of all columns.
        cache_bytes: Size of the cache. It holds at least one row group.

    Raises:
        ConfigError: A file or column does not exist.
        FormatError: A file is damaged, or its schema differs from that of the first file.
    """

    def __init__(
        self,
        paths: PathLike | Sequence[PathLike],
        columns: Sequence[str] | None = None,
        *,
        cache_bytes: int = 256 << 20,
    ) -> None:
        super().__init__(files_of(paths))
        self.columns = None if columns is None else names_of(columns)
        self._node = ParquetNode(self.paths, self.columns, cache_bytes)

    def content(self) -> str:
        return f"{super().content()}, {self.columns}"


class ParquetNode(Node):
    def __init__(self, paths: list[AnyFile], columns: list[str] | None, cache_bytes: int) -> None:
        footers = each_of(paths, _footer)
        schema = footers[0][0]
        names: list[str] = list(schema.names)
        self._as_dict = columns is None
        self._columns = names if columns is None else columns
        if not self._columns:
            what = f"columns= must name at least one column of {paths[0]}, got none."
            raise ConfigError(what, expected=", ".join(names))
        for name in self._columns:
            if names.count(name) != 1:
                what = f"{paths[0]} must have one column {name!r}, but has {names.count(name)}."
                raise ConfigError(what, got=", ".join(names))
        self._groups: list[tuple[AnyFile, int]] = []
        rows: list[int] = []
        for path, (other, rows_in) in zip(paths, footers, strict=True):
            if not other.equals(schema):
                raise FormatError(
                    f"{path} does not have the columns of {paths[0]}.",
                    got=str(other),
                    expected=str(schema),
                )
            self._groups += [(path, index) for index in range(len(rows_in))]
            rows += rows_in
        self._starts = np.concatenate(([0], np.cumsum(rows))).astype(np.int64)
        self.size = int(self._starts[-1])
        self.chunk = 256
        self._cache_bytes = cache_bytes
        self._cache = PerProcess(_new_cache)

    def read(self, epoch: int, positions: Positions) -> Block:
        rows = as_array(positions)
        groups = np.searchsorted(self._starts, rows, side="right") - 1
        return read_groups(groups, rows - self._starts[groups], self._read_group)

    def name_of(self, index: int) -> str:
        group = int(np.searchsorted(self._starts, index, side="right")) - 1
        path, number = self._groups[group]
        return f"{path}, row {index - self._starts[group - number]:,}"

    def _read_group(self, group: int, rows: NDArray[np.int64]) -> Block:
        values: list[Any] = []
        for name, column in zip(self._columns, self._cached(group), strict=True):
            with reading(self._groups[group][0], f"a Parquet file (column {name!r})"):
                values.append(column[rows])
        named = dict(zip(self._columns, values, strict=True))
        return Columns(named if self._as_dict else tuple(values), len(rows))

    def _cached(self, group: int) -> list[Any]:
        cache, lock = self._cache.get()
        columns = cache.get(group)
        if columns is not None:
            with lock:
                cache[group] = cache.pop(group, columns)  # move to the end
            return columns
        columns = self._decode(group)
        with lock:
            cache[group] = columns
            while len(cache) > 1 and self._cache_bytes < sum(
                int(column.nbytes) for decoded in cache.values() for column in decoded
            ):
                del cache[next(iter(cache))]
        return columns

    def _decode(self, group: int) -> list[Any]:
        path, index = self._groups[group]
        expected = int(self._starts[group + 1] - self._starts[group])
        with reading(path, f"a Parquet file (row group {index})"):
            # A shared handle would need a lock during decoding.
            with _opened(path) as opened:
                table = opened.read_row_group(index, columns=self._columns, use_threads=False)
            if table.num_rows != expected:
                raise ValueError(f"it now has {table.num_rows} rows instead of {expected}")
            table.validate(full=True)
            return [_column_of(table.column(name)) for name in self._columns]


def _footer(path: AnyFile) -> tuple[Any, list[int]]:
    """Return the schema of a file and the number of rows of each row group."""
    with reading(path, "a Parquet file"), _opened(path) as file:
        metadata = file.metadata
        schema: Any = file.schema_arrow
        rows: list[int] = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    for index, count in enumerate(rows):
        check_expansion(count * 8, path.stat().st_size, f"row group {index}", path)
    return schema, rows


def _new_cache() -> tuple[dict[int, list[Any]], threading.Lock]:
    return {}, threading.Lock()


def _opened(path: AnyFile) -> Any:
    pq: Any = require("pyarrow.parquet", extra="formats", needed_for="ParquetData")
    return pq.ParquetFile(path if isinstance(path, Path) else path.open())


def _column_of(chunked: Any) -> ColumnLike:
    """Convert a column of a table to an array or a similar object, indexed by arrays of rows."""
    pa: Any = require("pyarrow", extra="formats", needed_for="ParquetData")
    if pa.types.is_dictionary(chunked.type):
        chunked = chunked.cast(chunked.type.value_type)
    column = chunked.combine_chunks()
    kind = column.type
    if kind == pa.time64("ns"):
        return column.cast(pa.int64()).cast(pa.duration("ns")).to_numpy(zero_copy_only=False)
    if _is_plain(pa, column):
        return column.to_numpy(zero_copy_only=False)
    fixed = pa.types.is_fixed_size_list(kind)
    lists = fixed or pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if fixed and not column.null_count and _is_plain(pa, column.flatten()):
        return column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), kind.list_size)
    number = np.dtype(kind.to_pandas_dtype()).type if _is_number(pa, kind) else None

    # Convert rows separately, because a null would change the dtype of the whole group.
    def convert(scalar: Any) -> Any:
        if lists and scalar.is_valid and _is_plain(pa, scalar.values):
            return scalar.values.to_numpy(zero_copy_only=False).copy()
        value = scalar.as_py()
        return value if number is None or value is None else number(value)

    return _ObjectColumn(column, convert)


class _ObjectColumn:
    """Column whose values are converted from Arrow scalars by `convert` when they are read."""

    def __init__(self, column: Any, convert: Callable[[Any], Any]) -> None:
        self._column, self._convert = column, convert
        self.nbytes = int(column.nbytes)

    def __getitem__(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        out = np.empty(len(rows), object)
        for i, row in enumerate(rows.tolist()):
            out[i] = self._convert(self._column[row])
        return out


ColumnLike = NDArray[Any] | _ObjectColumn


def _is_plain(pa: Any, column: Any) -> bool:
    types, kind = pa.types, column.type
    if types.is_timestamp(kind) or types.is_date(kind) or types.is_duration(kind):
        return True
    return _is_number(pa, kind) and column.null_count == 0


def _is_number(pa: Any, kind: Any) -> bool:
    types = pa.types
    return types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
