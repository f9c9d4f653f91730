"""Plans of Arrow tables, and values of their columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError
from towerpack._core.extras import require
from towerpack.dataflow._plan import Node
from towerpack.dataflow._user_files import PerProcess
from towerpack.dataflow.datapoints import Block, Columns, Positions, as_array

_CHUNK: Final = 256
_CHUNK_BYTES: Final = 1 << 20
_TEXTS: Final = ("string", "large_string", "string_view", "binary", "large_binary", "binary_view")
_LISTS: Final = ("list", "large_list", "fixed_size_list")

Convert = Callable[[Any], NDArray[Any]]


class TableNode(Node):
    """Plan of a table that consists of `parts`: tables, or functions that open them.

    `columns` are those of tuples, or `None` for dicts of all. `convert` replaces `values_of_column`
    for some columns. `indices` chooses and orders the rows.
    """

    def __init__(
        self,
        parts: Sequence[Any],
        columns: Sequence[str] | None,
        convert: Mapping[str, Convert] | None = None,
        indices: NDArray[np.int64] | None = None,
    ) -> None:
        self._batches = PerProcess(partial(_batches, parts))
        schema, starts, batches = self._batches.get()
        self.nbytes = sum(batch.nbytes for batch in batches)
        self.size = int(starts[-1]) if indices is None else len(indices)
        self.chunk = max(1, min(_CHUNK, _CHUNK_BYTES * int(starts[-1]) // max(1, self.nbytes)))
        self._names = columns_of(schema.names, columns, "The table")
        self._columns, self._convert, self.indices = columns, convert or {}, indices

    def read(self, epoch: int, positions: Positions) -> Block:
        rows = as_array(positions)
        table = self._rows(rows if self.indices is None else self.indices[rows])
        convert = self._convert
        values = [convert.get(n, values_of_column)(table.column(n)) for n in self._names]
        as_dict = self._columns is None
        data = dict(zip(self._names, values, strict=True)) if as_dict else tuple(values)
        return Columns(data, len(rows))

    def name_of(self, index: int) -> str:
        return f"row {index if self.indices is None else self.indices[index]:,}"

    def _rows(self, rows: NDArray[np.int64]) -> Any:
        """Return a table of some rows."""
        pa = arrow()
        schema, firsts, batches = self._batches.get()
        batch = np.searchsorted(firsts, rows, side="right") - 1
        local = rows - firsts[batch]
        breaks = np.flatnonzero((np.diff(local) != 1) | (np.diff(batch) != 0)) + 1
        if len(batches) == 1 and len(breaks):
            with suppress(pa.ArrowNotImplementedError):  # for types such as string_view
                return batches[0].take(pa.array(local))
        # `Table.take` would first join all batches.
        starts = np.concatenate(([0], breaks))[: len(rows)]
        lengths = np.diff(starts, append=len(rows))
        runs = zip(batch[starts].tolist(), local[starts].tolist(), lengths.tolist(), strict=True)
        slices = [batches[index].slice(start, length) for index, start, length in runs]
        return pa.Table.from_batches(slices, schema).combine_chunks()


def _batches(parts: Sequence[Any]) -> tuple[Any, NDArray[np.int64], list[Any]]:
    """Return the schema of a table, the first row of each record batch, and the batches."""
    table = arrow().concat_tables([part() if callable(part) else part for part in parts])
    batches = table.to_batches()
    return table.schema, np.cumsum([0, *map(len, batches)]), batches


def arrow(module: str = "pyarrow") -> Any:
    return require(module, extra="formats", needed_for="A source of tables")


def columns_of(names: Sequence[str], columns: Sequence[str] | None, what: str) -> list[str]:
    """Return the names of the columns to read. Raise an error unless each of them exists once."""
    wanted = list(names if columns is None else columns)
    if not wanted:
        problem = f"columns= must name at least one column of {what}, got none."
        raise ConfigError(problem, expected=", ".join(names))
    for name in wanted:
        if (count := list(names).count(name)) != 1:
            problem = f"{what} must have one column {name!r}, but has {count}."
            raise ConfigError(problem, got=", ".join(names))
    return wanted


def values_of_column(column: Any) -> NDArray[Any]:
    """Convert a column of a table. The array holds objects unless all values have one dtype."""
    pa = arrow()
    column = array_of_column(column)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if column.type == pa.time64("ns"):
        column = column.cast(pa.int64()).cast(pa.duration("ns"))
    if _is_plain(pa, column):
        return _writable(column)
    if _is_any(pa, column.type, _TEXTS):
        return column.to_numpy(zero_copy_only=False)
    if _is_any(pa, column.type, _LISTS):
        return _lists(pa, column)
    items = column.to_pylist()
    if _is_number(pa, column.type):  # A null must not change the dtype of the other values.
        number = np.dtype(column.type.to_pandas_dtype()).type
        items = [None if item is None else number(item) for item in items]
    return objects(items)


def array_of_column(column: Any) -> Any:
    """Return a column as one Arrow array, without an extension type."""
    array = column if isinstance(column, arrow().Array) else column.combine_chunks()
    return getattr(array, "storage", array)


def objects(items: Sequence[Any]) -> NDArray[Any]:
    return np.fromiter(items, object, len(items))


def _lists(pa: Any, column: Any) -> NDArray[Any]:
    flat = column.flatten()
    if column.null_count or not len(column) or not _is_plain(pa, flat):
        return objects([_list(pa, scalar) for scalar in column])
    values, lengths = _writable(flat), arrow("pyarrow.compute").list_value_length(column).to_numpy()
    if (lengths == lengths[0]).all():
        return values.reshape(len(lengths), lengths[0])
    return objects(np.split(values, np.cumsum(lengths)[:-1]))


def _list(pa: Any, scalar: Any) -> Any:
    if scalar.is_valid and _is_plain(pa, scalar.values):
        return _writable(scalar.values)
    return scalar.as_py()


def _writable(column: Any) -> NDArray[Any]:
    values: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return values if values.flags.writeable else values.copy()


def _is_plain(pa: Any, column: Any) -> bool:
    if _is_any(pa, column.type, ("timestamp", "date", "duration")):
        return True
    return _is_number(pa, column.type) and column.null_count == 0


def _is_number(pa: Any, kind: Any) -> bool:
    return _is_any(pa, kind, ("integer", "floating", "boolean"))


def _is_any(pa: Any, kind: Any, names: Sequence[str]) -> bool:
    return any(getattr(pa.types, f"is_{name}")(kind) for name in names)
