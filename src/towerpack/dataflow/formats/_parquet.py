from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import FormatError
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
from towerpack.dataflow.datapoints import Block, Positions, as_array, read_groups
from towerpack.dataflow.formats._arrow import TableNode, arrow, columns_of
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
        self._columns = columns
        self._names = columns_of(schema.names, columns, str(paths[0]))
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
        with reading(self._groups[group][0], "a Parquet file"):
            return self._cached(group).read(0, rows)

    def _cached(self, group: int) -> TableNode:
        cache, lock = self._cache.get()
        table = cache.get(group)
        if table is not None:
            with lock:
                cache[group] = cache.pop(group, table)  # move to the end
            return table
        table = self._decode(group)
        with lock:
            cache[group] = table
            while len(cache) > 1 and self._cache_bytes < sum(t.nbytes for t in cache.values()):
                del cache[next(iter(cache))]
        return table

    def _decode(self, group: int) -> TableNode:
        path, index = self._groups[group]
        expected = int(self._starts[group + 1] - self._starts[group])
        with reading(path, f"a Parquet file (row group {index})"):
            # A shared handle would need a lock during decoding.
            with _opened(path) as opened:
                table = opened.read_row_group(index, columns=self._names, use_threads=False)
            if table.num_rows != expected:
                raise ValueError(f"it now has {table.num_rows} rows instead of {expected}")
            table.validate(full=True)
            return TableNode([table.combine_chunks()], self._columns)


def _footer(path: AnyFile) -> tuple[Any, list[int]]:
    """Return the schema of a file and the number of rows of each row group."""
    with reading(path, "a Parquet file"), _opened(path) as file:
        metadata = file.metadata
        schema: Any = file.schema_arrow
        rows: list[int] = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    for index, count in enumerate(rows):
        check_expansion(count * 8, path.stat().st_size, f"row group {index}", path)
    return schema, rows


def _new_cache() -> tuple[dict[int, TableNode], threading.Lock]:
    return {}, threading.Lock()


def _opened(path: AnyFile) -> Any:
    pq = arrow("pyarrow.parquet")
    return pq.ParquetFile(path if isinstance(path, Path) else path.open())
