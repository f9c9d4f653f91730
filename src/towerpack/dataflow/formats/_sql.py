from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Any, Final

from towerpack._core.errors import ConfigError, DataFlowError
from towerpack.dataflow._plan import Node
from towerpack.dataflow._user_files import PerProcess
from towerpack.dataflow.arguments import names_of
from towerpack.dataflow.content import content_of_rows
from towerpack.dataflow.datapoints import Block, Positions, as_ints
from towerpack.dataflow.formats._arrow import columns_of
from towerpack.dataflow.sources._memory import SENDER, PlannedSource

_CHUNK: Final = 256
_MOST_PARAMETERS: Final = 900  # Some databases allow 999 in a statement.
# Placeholder of parameter i for each parameter style of DB-API.
_PLACEHOLDERS: Final = dict(qmark="?", format="%s", numeric=":{}", named=":k{}", pyformat="%(k{})s")


class SQLData(PlannedSource["SQLNode"]):
    """Source of a table or query of a database: datapoint i is the row with the i-th smallest key.

    The keys are read once, and rows are fetched by their keys in blocks, so the key should have an
    index. Values are those that the database's module returns. Each thread of each process opens
    its own connection. Rows that are added later are ignored. Thread- and fork-safe; resumes at
    once.

    Args:
        connect: Function that opens a DB-API connection, such as
            `lambda: sqlite3.connect("rows.db")`. Worker processes call it too.
        table: Name of a table, such as `"rows"` or `"schema.rows"`, or a query that begins with
            `SELECT` or `WITH`.
        key: Column whose values identify the rows: integers, texts or others that can be sorted.
        columns: Columns in the order of the components; datapoints are then tuples. By default,
            datapoints are dicts of all columns.

    Raises:
        ConfigError: The table cannot be read, a column does not exist, or a key is NULL or occurs
            twice.
        DataFlowError: A row was deleted, or the database reports an error. Raised while iterating.
    """

    def __init__(
        self,
        connect: Callable[[], Any],
        table: str,
        key: str = "id",
        columns: Sequence[str] | None = None,
    ) -> None:
        self.table = table
        self.key = key
        self.columns = None if columns is None else names_of(columns)
        super().__init__(SQLNode(connect, table, key, self.columns), shuffle=False, seed=None)

    def content(self) -> str:
        data = content_of_rows(self._node)
        return f"{super().content()}, {self.table}, {self.key}, {self.columns}, {data}"


class SQLNode(Node):
    def __init__(
        self, connect: Callable[[], Any], table: str, key: str, columns: Sequence[str] | None
    ) -> None:
        self._connect = partial(_Connection, connect)
        self._connections = PerProcess(self._connect)
        self._table, self._key, self._columns = f"{' '.join(table.split()):.60}", key, columns
        self._from = ".".join(map(_quoted, table.split(".")))
        if re.match(r"\s*(SELECT|WITH)\s", table, re.IGNORECASE):
            self._from = f"({table.strip().rstrip(';')}) q"
        names, _ = self._select(ConfigError, "*", "1", [0])
        columns_of(names, [key], self._table)
        self._names = columns_of(names, columns, self._table)
        _, rows = self._select(ConfigError, _quoted(key), "1", [1])
        what = f"The key {key!r} of {self._table}"
        self._keys: Sequence[Any] = _sorted([value for (value,) in rows], what)
        self.size = len(self._keys)
        self.chunk = _CHUNK

    def read(self, epoch: int, positions: Positions) -> Block:
        keys = [self._keys[position] for position in as_ints(positions)]
        names = ", ".join(map(_quoted, (self._key, *self._names)))
        fetched: dict[Any, tuple[Any, ...]] = {}
        for start in range(0, len(keys), _MOST_PARAMETERS):
            part = keys[start : start + _MOST_PARAMETERS]
            _, rows = self._select(DataFlowError, names, _quoted(self._key), part)
            fetched |= {key: tuple(values) for key, *values in rows}
        for key in keys:
            if key not in fetched:
                what = f"The row of {self._table} with {self._key} = {key!r} no longer exists."
                raise DataFlowError(what, fix="restore the row, or create the flow again")
        if self._columns is not None:
            return [fetched[key] for key in keys]
        return [dict(zip(self._names, fetched[key], strict=True)) for key in keys]

    def name_of(self, index: int) -> str:
        return f"{self._table}, {self._key} = {self._keys[index]!r}"

    def __getstate__(self) -> dict[str, Any]:
        sender = SENDER.get()
        keys = self._keys if sender is None else sender.flat(self._keys)
        return {**super().__getstate__(), "_keys": keys}

    def _select(
        self, error: type[ConfigError | DataFlowError], names: str, tested: str, values: list[Any]
    ) -> tuple[list[str], list[list[Any]]]:
        """Return the names of the columns and the rows whose `tested` is one of `values`."""
        try:
            connection = self._connections.get().opened.connection
            place = _placeholder_of(connection)
            places = ", ".join(place.format(i) for i in range(1, len(values) + 1))
            query = f"SELECT {names} FROM {self._from} WHERE {tested} IN "  # noqa: S608 - quoted
            query = query.replace("%", "%%" if "%" in place else "%")
            named = {f"k{i}": value for i, value in enumerate(values, 1)}
            cursor = connection.cursor()
            cursor.execute(f"{query}({places})", named if "k" in place else values)
            columns = [column[0] for column in cursor.description]
            rows = [[*(r.values() if hasattr(r, "values") else r)] for r in cursor.fetchall()]
            cursor.close()
            with suppress(Exception):  # Some modules have no transactions.
                connection.rollback()
        except Exception as fault:
            self._connections = PerProcess(self._connect)  # The next query connects again.
            raise error(
                f"{self._table} cannot be read from the database.",
                got=f"{type(fault).__name__}: {fault}",
                fix="check the database, the name of the table, and that connect= is a function "
                "that opens a DB-API connection",
            ) from fault
        return columns, rows


class _Connection(threading.local):
    def __init__(self, connect: Callable[[], Any]) -> None:  # Called in each thread
        self.opened = _Opened(connect())


class _Opened:
    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self._pid = os.getpid()

    def __del__(self) -> None:
        if self._pid == os.getpid():  # A fork must not end the session of its parent.
            with suppress(Exception):
                self.connection.close()


def _placeholder_of(connection: Any) -> str:
    name = type(connection).__module__
    while name:
        style = getattr(sys.modules.get(name), "paramstyle", None)
        if style in _PLACEHOLDERS:
            return _PLACEHOLDERS[style]
        name = name.rpartition(".")[0]
    raise TypeError(f"the module of {type(connection).__qualname__} has no DB-API paramstyle")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _sorted(keys: list[Any], what: str) -> list[Any]:
    problem = "contains NULL" if None in keys else ""
    try:
        keys.sort()
        repeated = [key for key, other in pairwise(keys) if key == other]
        problem = f"contains {repeated[0]!r} more than once" if repeated else problem
    except TypeError as error:
        problem = problem or f"cannot be sorted: {error}"
    if problem:
        fix = "choose a key= whose values identify the rows, such as the primary key"
        raise ConfigError(f"{what} {problem}.", fix=fix)
    return keys
