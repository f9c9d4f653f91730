"""Readers of labeled texts: tables, files with one text per line, and folders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from towerpack._core.errors import ConfigError, FormatError
from towerpack._core.logs import get_logger
from towerpack._core.tables import Row, is_header, lines_of, read_rows, read_text
from towerpack.apps.text_classification._config import DataConfig
from towerpack.dataflow.sources.discovery import NO_TEXT, Discovery, is_text

_LOG = get_logger(__name__)

Example = tuple[str, str, str]  # text, name of its class, and location for errors

PREFIX: Final = "__label__"


def read_table(path: Path, config: DataConfig) -> Iterator[Example]:
    """Iterate over the rows of a table. A `.csv` has commas and quotes, other files have tabs."""
    rows = read_rows(path, config.encoding)
    columns = [_column(path, rows, column) for column in (config.text, config.label)]
    text, label = columns
    has_header = isinstance(config.text, str) or isinstance(config.label, str)
    fields = len(rows[0].fields) if rows else 0
    if not has_header and is_header(rows, label, lambda text: " " in text):
        _LOG.warning("Treating %s as a header: %s.", rows[0], ", ".join(rows[0].fields))
        has_header = True
    rows = rows[has_header:]
    for row in rows:
        if len(row.fields) != fields or fields <= max(columns):
            raise FormatError(
                f"{row} must have {max(fields, max(columns) + 1)} fields, got {len(row.fields)}.",
                fix="enclose texts with the delimiter in quotation marks, or set data.text and "
                "data.label to columns that all rows have",
            )
    # A quotation mark at the start of a text may include rows up to the next quotation mark.
    multiline = [row for row in rows if "\n" in row.fields[text]]
    if multiline:
        _LOG.warning(
            "%d texts have several lines, for example in %s.", len(multiline), multiline[0]
        )
    for row in rows:
        yield row.fields[text], row.fields[label], str(row)


def read_lines(path: Path, config: DataConfig) -> Iterator[Example]:
    """Iterate over lines `__label__CLASS text`, or over texts with classes in `NAME.labels`."""
    listed = path.with_suffix(".labels")
    texts = lines_of(read_text(path, config.encoding))
    if listed.is_file():
        labels = lines_of(read_text(listed, config.encoding))
        if len(labels) != len(texts):
            raise FormatError(
                f"{listed} must have a line for each of the {len(texts)} lines of {path}, got "
                f"{len(labels)}."
            )
        for number, (text, label) in enumerate(zip(texts, labels, strict=True), 1):
            yield text, label, f"{path}, line {number}"
        return
    for number, line in enumerate(texts, 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        label, text = (*line.split(maxsplit=1), "")[:2]
        if not label.startswith(PREFIX) or label == PREFIX or text.startswith(PREFIX):
            raise FormatError(
                f"{where} must have one label, but has "
                f"{'several' if text.startswith(PREFIX) else 'none'}.",
                got=repr(line[:40]),
                expected=f"{PREFIX}CLASS text, or the file {listed.name}",
            )
        yield text, label.removeprefix(PREFIX), where


def read_folder(path: Path, config: DataConfig) -> Iterator[Example]:
    """Iterate over the texts in the folder of each class.

    The folder `unsup` of IMDB, which has no labels, is skipped.
    """
    discovery = Discovery(is_text, NO_TEXT)
    names = [name for name in discovery.folders(path) if name != "unsup"]
    files = list(discovery.by_class(path, names))
    discovery.report(path)
    if not files:
        raise ConfigError(f"No texts found in {path}.", expected="CLASS/*.txt")
    for number, file in files:
        yield read_text(Path(file), config.encoding), names[number], file


READERS: Final[dict[str, tuple[tuple[str, ...], Callable[..., Iterator[Example]]]]] = {
    "table": (("{}.csv", "{}.tsv"), read_table),
    "lines": (("{}.txt",), read_lines),
    "folder": (("{}",), read_folder),
}
"""Patterns of the usual file names, and the function that reads a file or folder, by name."""


def _column(path: Path, rows: Sequence[Row], column: str | int) -> int:
    """Return the index of a column. A column name is searched in the first row."""
    if isinstance(column, int):
        return column
    header = [field.strip() for field in rows[0].fields] if rows else []
    names = [name.casefold() for name in header]
    if names.count(column.casefold()) != 1:
        raise ConfigError(
            f"{path} must have one column {column!r}, got {names.count(column.casefold())}.",
            got=", ".join(header)[:200] or "an empty file",
            fix="set data.text and data.label to names in the first line, or to column numbers "
            "(from 0) if there is no header",
        )
    return names.index(column.casefold())
