"""Parquet files."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from towerpack._core.errors import ConfigError, FormatError
from towerpack._core.extras import require
from towerpack.dataflow._arguments import names_of
from towerpack.dataflow._content import content_of_files
from towerpack.dataflow._datapoints import (
    Block,
    Columns,
    Datapoint,
    Positions,
    as_array,
    read_groups,
)
from towerpack.dataflow._flow import Length, Place, Stage
from towerpack.dataflow._opening import PathLike, PerProcess, check_expansion, files_of, reading
from towerpack.dataflow._plan import Node
from towerpack.dataflow.formats._arrow import column_of

_CHUNK = 256


class ParquetData(Stage):
    """Datapoint i is row i of the table that one or several Parquet files make.

    Files are read by row groups, and decoded groups are kept for as long as they fit into
    `cache_bytes`, in each process. So reading in order decodes each group once; shuffled reading
    does too if the table fits, and otherwise decodes a group for almost every datapoint: shuffle in
    a window then (`LocallyShuffleData`), or write smaller groups.

    Numbers and fixed-size lists of numbers become arrays, and blocks of them are read without a
    loop in Python. Lists of numbers become arrays of their own length, strings `str`, binary
    `bytes`, structs dicts; a null is `None`. Dates, times with a date and durations are NumPy's
    `datetime64` and `timedelta64`, whose null is NaT; times of day in nanoseconds a `timedelta64`
    since midnight.

    Contract: in order; as long as the files; not random; thread- and fork-safe; resumable at once.

    Args:
        paths: One file, several of one schema, or a pattern such as `train-*.parquet`.
        columns: Which columns, in this order; datapoints are then tuples. By default all of them,
            and datapoints are dicts.
        cache_bytes: How much of what is decoded to keep; at least one row group.

    Raises:
        ConfigError: There is no such file or column.
        FormatError: A file is damaged, or its schema is not that of the first.
    """

    def __init__(
        self,
        paths: PathLike | Sequence[PathLike],
        columns: Sequence[str] | None = None,
        *,
        cache_bytes: int = 256 << 20,
    ) -> None:
        self.paths = files_of(paths)
        self.columns = None if columns is None else names_of(columns)
        self._node = ParquetNode(self.paths, self.columns, cache_bytes)

    def length(self) -> Length:
        return self._node.size

    def content(self) -> str:
        return f"{super().content()}, {self.columns}, {content_of_files(self.paths)}"

    def arguments(self) -> str:
        more = len(self.paths) - 1
        return self.paths[0].name + (f" and {more} more" if more else "")

    def identity(self) -> str:
        return str(self._node.size)

    def compile(self, place: Place) -> Node | None:
        return self._node


class ParquetNode(Node):
    """Reads rows of decoded row groups as columns."""

    def __init__(self, paths: list[Path], columns: list[str] | None, cache_bytes: int) -> None:
        schema, rows_of = _footer(paths[0])
        found: list[str] = list(schema.names)
        self._as_dict = columns is None
        self._columns = found if columns is None else columns
        if not self._columns:
            raise ConfigError(f"No columns of {paths[0]} are to be read.", got=", ".join(found))
        for name in self._columns:
            if found.count(name) != 1:
                raise ConfigError(
                    f"{paths[0]} has {found.count(name)} columns {name!r}.",
                    got=", ".join(found),
                    expected="one",
                )
        rows_in = [rows_of]
        for path in paths[1:]:
            other, rows_of = _footer(path)
            if not other.equals(schema):
                raise FormatError(
                    f"{path} does not have the columns of {paths[0]}.",
                    got=", ".join(f"{field.name}: {field.type}" for field in other),
                    expected=", ".join(f"{field.name}: {field.type}" for field in schema),
                )
            rows_in.append(rows_of)
        self._paths = paths
        # Row groups of all files: which file, which group of it, and where its rows begin.
        self._groups = [(i, g) for i, rows in enumerate(rows_in) for g in range(len(rows))]
        rows = [rows_in[i][g] for i, g in self._groups]
        self._starts = np.concatenate(([0], np.cumsum(rows))).astype(np.int64)
        self.size = int(self._starts[-1])
        self.chunk = _CHUNK
        self._cache_bytes = cache_bytes
        self._cache = PerProcess(_new_cache)

    def read(self, epoch: int, positions: Positions) -> Block:
        where = as_array(positions)
        groups = np.searchsorted(self._starts, where, side="right") - 1
        return read_groups(groups, where - self._starts[groups], self._read_group)

    def _read_group(self, group: int, rows: np.ndarray[Any, np.dtype[np.int64]]) -> Block:
        columns = self._kept(group)
        path = self._paths[self._groups[group][0]]
        taken: list[Any] = []
        for name, column in zip(self._columns, columns, strict=True):
            with reading(path, f"a Parquet file (column {name!r})"):
                taken.append(column[rows])
        data: Datapoint = tuple(taken)
        if self._as_dict:
            data = dict(zip(self._columns, taken, strict=True))
        return Columns(data, len(rows))

    def _kept(self, group: int) -> list[Any]:
        """The columns of a row group; the longest unused ones are given up first."""
        cache, lock = self._cache.get()
        columns = cache.get(group)
        if columns is not None:
            with lock:
                cache[group] = cache.pop(group, columns)  # now the last one
            return columns
        columns = self._decode(group)
        with lock:
            cache[group] = columns
            while len(cache) > 1 and sum(map(_nbytes, cache.values())) > self._cache_bytes:
                del cache[next(iter(cache))]
        return columns

    def _decode(self, group: int) -> list[Any]:
        file, index = self._groups[group]
        path = self._paths[file]
        expected = int(self._starts[group + 1] - self._starts[group])
        pq = _pyarrow()
        with reading(path, f"a Parquet file (row group {index})"):
            # Opened anew: a handle that is shared would need a lock for all of the decoding.
            with pq.ParquetFile(path) as opened:
                table = opened.read_row_group(index, columns=self._columns, use_threads=False)
            if table.num_rows != expected:
                raise ValueError(f"it has {table.num_rows} rows and had {expected}")
            table.validate(full=True)
            return [column_of(table.column(name)) for name in self._columns]


def _footer(path: Path) -> tuple[Any, list[int]]:
    """A file's schema, and the rows of its groups, checked against its size."""
    with reading(path, "a Parquet file"), _pyarrow().ParquetFile(path) as file:
        metadata = file.metadata
        schema: Any = file.schema_arrow
        rows: list[int] = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    for index, count in enumerate(rows):
        check_expansion(count * 8, path.stat().st_size, f"row group {index}", path)
    return schema, rows


def _new_cache() -> tuple[dict[int, list[Any]], threading.Lock]:
    return {}, threading.Lock()


def _nbytes(columns: list[Any]) -> int:
    return sum(int(column.nbytes) for column in columns)


def _pyarrow() -> Any:
    return require("pyarrow.parquet", extra="formats", needed_for="ParquetData")
