from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from towerpack._core.errors import ConfigError
from towerpack.dataflow._user_files import AnyFile, files_of, reading
from towerpack.dataflow.arguments import names_of, repr_of
from towerpack.dataflow.content import content_of_rows
from towerpack.dataflow.formats._arrow import TableNode, arrow
from towerpack.dataflow.formats._indexed_files import IndexedFiles
from towerpack.dataflow.formats._parquet import ParquetNode

_TEXT = {".csv", ".tsv"}
_CACHE_BYTES = 256 << 20


class TableData(IndexedFiles):
    """Source of a table: datapoint i is row i, with values of the types that `ParquetData` yields.

    Tables in memory are not copied, and move to shared memory for worker processes. Parquet files
    are read as by `ParquetData`. CSV and TSV files are loaded, and the types of their columns are
    inferred. The index of a pandas data frame is not read: call `reset_index()` first. NaN of its
    float columns stays NaN. Other missing values are `None`. Thread- and fork-safe; resumes at
    once.

    Args:
        table: `pyarrow.Table`, `pandas.DataFrame`, or another table with Arrow's C interface, such
            as one of Polars. Otherwise a file, several, or a pattern: CSV (.csv), TSV (.tsv) or
            Parquet.
        columns: Columns in the order of the components; datapoints are then tuples. By default,
            datapoints are dicts of all columns.

    Raises:
        ConfigError: `table` is of another type, or a file or column does not exist.
        FormatError: A file is damaged, or files differ in their columns.
    """

    def __init__(self, table: Any, columns: Sequence[str] | None = None) -> None:
        self.columns = None if columns is None else names_of(columns)
        is_path = issubclass(type(table), (str, Path, list, tuple))  # keeps the type of `table`
        super().__init__(files_of(table) if is_path else [])
        if self.paths and not _TEXT & {*_suffixes(self.paths[0])}:
            self._node = ParquetNode(self.paths, self.columns, _CACHE_BYTES)
            return
        if self.paths:
            table = _of_csv(self.paths)
        elif hasattr(table, "iloc"):
            table = _of_pandas(table)
        elif hasattr(table, "__arrow_c_stream__") or hasattr(table, "__arrow_c_array__"):
            table = arrow().table(table)
        else:
            what = f"TableData needs a table or paths of files, got {repr_of(table)}."
            raise ConfigError(what, fix="pass a pyarrow.Table or a pandas.DataFrame")
        self._node = TableNode([table], self.columns)

    def content(self) -> str:
        rows = "" if self.paths else content_of_rows(self._indexed())
        return f"{super().content()}, {self.columns}, {rows}"


def _suffixes(path: AnyFile) -> list[str]:
    return Path(path.name).suffixes


def _of_csv(paths: Sequence[AnyFile]) -> Any:
    csv, tables = arrow("pyarrow.csv"), list[Any]()
    for path in paths:
        with reading(path, "a CSV or TSV file"):
            options = csv.ParseOptions(delimiter="\t" if ".tsv" in _suffixes(path) else ",")
            source: Any = path if isinstance(path, Path) else path.open()
            tables.append(csv.read_csv(source, parse_options=options))
            _ = tables[-1].column_names  # Raises an error if a name is not UTF-8.
            if tables[-1].schema != tables[0].schema:
                raise ValueError(f"it does not have the columns of {paths[0]}")
    return arrow().concat_tables(tables).combine_chunks()


def _of_pandas(frame: Any) -> Any:
    pa, arrays = arrow(), list[Any]()
    for name, column in frame.items():
        try:  # By default, Arrow converts NaN to null.
            arrays.append(pa.array(column, from_pandas=column.dtype.kind != "f"))
        except (pa.ArrowException, TypeError) as error:
            what = f"TableData cannot read the column {name!r} of the data frame."
            fix = "convert the column to one type, or drop it"
            raise ConfigError(what, got=str(error), fix=fix) from error
    return pa.table(arrays, [str(name) for name in frame.columns])
