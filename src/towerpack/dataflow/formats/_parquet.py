"""Parquet files."""

from __future__ import annotations

import difflib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from towerpack._core.errors import ConfigError, FormatError
from towerpack._core.extras import require
from towerpack.dataflow._arguments import names_of
from towerpack.dataflow._blocks import Block, Columns, Positions, as_array, read_groups
from towerpack.dataflow._content import content_of_files
from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow._flow import Length, Place, Stage
from towerpack.dataflow._opening import PathLike, check_expansion, files_of, reading
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
        pq = _pyarrow()
        files = [_Footer(pq, path) for path in paths]
        for one in files[1:]:
            one.check_same(files[0])
        self._as_dict = columns is None
        self._columns = files[0].columns if columns is None else columns
        if not self._columns:
            raise ConfigError(
                f"No columns of {paths[0]} are to be read.",
                expected="one or more of " + ", ".join(files[0].columns),
            )
        files[0].check_columns(self._columns)
        self._paths = paths
        # Row groups of all files: which file, which group of it, and where its rows begin.
        groups = [(i, g) for i, one in enumerate(files) for g in range(len(one.rows))]
        self._groups = groups
        rows = [files[i].rows[g] for i, g in groups]
        self._starts = np.concatenate(([0], np.cumsum(rows))).astype(np.int64)
        self.size = int(self._starts[-1])
        self.chunk = _CHUNK
        self._cache = _Cache(cache_bytes)

    def read(self, epoch: int, positions: Positions) -> Block:
        where = as_array(positions)
        groups = np.searchsorted(self._starts, where, side="right") - 1
        return read_groups(groups, where - self._starts[groups], self._read_group)

    def _read_group(self, group: int, rows: np.ndarray[Any, np.dtype[np.int64]]) -> Block:
        columns = self._cache.get(group)
        if columns is None:
            columns = self._decode(group)
            self._cache.put(group, columns)
        path = self._paths[self._groups[group][0]]
        taken: list[Any] = []
        for name, column in zip(self._columns, columns, strict=True):
            with reading(path, f"a Parquet file (column {name!r})"):
                taken.append(column[rows])
        data: Datapoint = tuple(taken)
        if self._as_dict:
            data = dict(zip(self._columns, taken, strict=True))
        return Columns(data, len(rows))

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


class _Footer:
    """What the end of a file says about it, checked against the file's size."""

    def __init__(self, pq: Any, path: Path) -> None:
        self.path = path
        with reading(path, "a Parquet file"), pq.ParquetFile(path) as file:
            metadata = file.metadata
            self.schema: Any = file.schema_arrow
            self.rows: list[int] = [
                metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)
            ]
        self.columns: list[str] = list(self.schema.names)
        stored = path.stat().st_size
        for index, rows in enumerate(self.rows):
            check_expansion(rows * 8, stored, f"row group {index}", path)

    def check_columns(self, wanted: list[str]) -> None:
        for name in wanted:
            if self.columns.count(name) != 1:
                near = difflib.get_close_matches(name, set(self.columns) - {name}, n=1)
                raise ConfigError(
                    f"{self.path} has {self.columns.count(name)} columns {name!r}.",
                    got=", ".join(self.columns),
                    expected="one",
                    fix=f"did you mean {near[0]!r}?" if near else None,
                )

    def check_same(self, first: _Footer) -> None:
        if not self.schema.equals(first.schema):
            raise FormatError(
                f"{self.path} does not have the columns of {first.path}.",
                got=", ".join(f"{field.name}: {field.type}" for field in self.schema),
                expected=", ".join(f"{field.name}: {field.type}" for field in first.schema),
            )


class _Cache:
    """Decoded row groups, the longest unused given up first; one of its own in each process."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._kept: OrderedDict[int, list[Any]] = OrderedDict()
        self._nbytes = 0
        self._lock = threading.Lock()

    def get(self, group: int) -> list[Any] | None:
        with self._lock:
            found = self._kept.get(group)
            if found is not None:
                self._kept.move_to_end(group)
            return found

    def put(self, group: int, columns: list[Any]) -> None:
        with self._lock:
            if group not in self._kept:
                self._kept[group] = columns
                self._nbytes += _nbytes(columns)
            while self._nbytes > self._most and len(self._kept) > 1:
                _, gone = self._kept.popitem(last=False)
                self._nbytes -= _nbytes(gone)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_Cache, (self._most,))


def _nbytes(columns: list[Any]) -> int:
    return sum(int(column.nbytes) for column in columns)


def _pyarrow() -> Any:
    return require("pyarrow.parquet", extra="formats", needed_for="ParquetData")
