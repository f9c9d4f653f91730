"""Reading of users' text files: texts, lines and rows of tables, with strict decoding."""

import codecs
import csv
import io
import itertools
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from towerpack._core.errors import ConfigError, FormatError
from towerpack._core.logs import get_logger
from towerpack._core.remote_path import RemotePath, is_url

_LOG = get_logger(__name__)
_MARKS: Final = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
_FIRST_LINES: Final = 20
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_SINGLE_QUOTED: Final = re.compile(r"\s*'[^']*'\s*([,;\t]|$)")
_INTEGER: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)
_NOT_DECODED: Final = re.compile(r"[\udc80-\udcff]")


class Row(NamedTuple):
    """Row of a table with its file and line. `str(row)` returns the position for messages."""

    fields: list[str]
    path: str
    line: int

    def __str__(self) -> str:
        return f"{self.path}, line {self.line}"


def read_text(path: str | Path, encoding: str | None = None) -> str:
    """Return the text of a file. All line ends become line feeds.

    A byte order mark of UTF-8 or UTF-16 has priority over `encoding`, whose default is UTF-8.
    """
    return _LINE_END.sub("\n", _decoded(_bytes_of(path), path, encoding))


def lines_of(text: str) -> list[str]:
    """Split a text from `read_text` into lines. Form feeds do not end lines, only line feeds do."""
    return text.removesuffix("\n").split("\n") if text else []


def read_rows(
    path: str | Path,
    encoding: str | None = None,
    *,
    delimiter: str | None = None,
    quotechar: str | None = None,
    is_file: Callable[[str], bool] | None = None,
) -> list[Row]:
    """Return the rows of a table, without empty lines.

    Args:
        path: Path of the file.
        encoding: Encoding of a file without a byte order mark; None for UTF-8.
        delimiter: Separator of fields. None detects it: the first of comma, semicolon and tab (tab
            first, unless the name ends in `.csv`) that occurs in all of the first lines, else in
            the first line.
        quotechar: Quotation mark of fields. None means a single quote if the first field begins
            with one, else a double quote. Tab-separated fields have no quotes, except in `.csv`.
        is_file: Function that tells whether a field names a file. Names of files may be in another
            encoding than the table.
    """
    name, raw = str(path), _bytes_of(path)
    text = _decoded(raw, path, encoding, "surrogateescape" if is_file else "strict")
    if re.match("sep=.[\r\n]", text):  # Excel reads the delimiter from such a line.
        delimiter, text = text[4], text[5:]
    lines = list(itertools.islice(filter(str.strip, io.StringIO(text, None)), _FIRST_LINES))
    is_csv = name.lower().endswith(".csv")
    if delimiter is None:
        usual = ",;\t" if is_csv else "\t,;"
        common = (
            d for some in (lines, lines[:1]) for d in usual if all(d in line for line in some)
        )
        delimiter = next(common, ",")
    if quotechar is None and (is_csv or delimiter != "\t"):
        quotechar = "'" if lines and _SINGLE_QUOTED.match(lines[0]) else '"'
    reader = csv.reader(
        io.StringIO(text, newline=""),
        delimiter=delimiter,
        quotechar=quotechar,
        quoting=csv.QUOTE_MINIMAL if quotechar else csv.QUOTE_NONE,
        skipinitialspace=not delimiter.isspace(),
        strict=True,
    )
    rows: list[Row] = []
    number, limit = 1, csv.field_size_limit(sys.maxsize)
    try:
        for fields in reader:
            if any(map(str.strip, fields)) or (len(fields) > 1 and not delimiter.isspace()):
                rows.append(Row(fields, name, number))
            number = reader.line_num + 1
    except csv.Error as error:
        raise FormatError(
            f"{path}, line {number}: each opening quotation mark needs a closing one.",
            got=str(error),
            fix="enclose fields that contain quotation marks in quotation marks, and write each "
            "inner mark twice",
        ) from error
    finally:
        csv.field_size_limit(limit)
    if is_file and _NOT_DECODED.search(text):
        fields = (field.strip() for row in rows for field in row.fields)
        if not all(is_file(field) for field in fields if _NOT_DECODED.search(field)):
            _decoded(raw, path, encoding)
    return rows


def is_header(rows: Sequence[Row], label: int, is_item: Callable[[str], bool]) -> bool:
    """Return whether the first row of a table is a header.

    In a header, the label is not an integer and occurs in no other row, and no other field is an
    item, such as an existing file. `label` is the index of the label column.
    """
    if not rows or len(rows[0].fields) <= label or _INTEGER.fullmatch(rows[0].fields[label]):
        return False
    items = [field.strip() for field in rows[0].fields]
    name = items.pop(label)
    others = (row.fields[label].strip() for row in rows[1:] if len(row.fields) > label)
    return not any(map(is_item, items)) and name not in others


def warn_of_similar(labels: Iterable[tuple[str, Any]]) -> None:
    """Log a warning for class names that differ only in case, spaces or Unicode form.

    `labels` holds the class name and the file position of each row.
    """
    places: dict[str, list[Any]] = {}
    for label, where in labels:
        places.setdefault(label, []).append(where)
    groups: dict[str, list[str]] = {}
    for label in places:
        plain = unicodedata.normalize("NFKC", label).casefold()
        groups.setdefault("".join(plain.split()), []).append(label)
    for similar in (labels for labels in groups.values() if len(labels) > 1):
        counted = (f"{s!a} ({len(places[s])} rows, first in {places[s][0]})" for s in similar)
        _LOG.warning("Classes differ only in case, spaces or Unicode form: %s.", ", ".join(counted))


def _bytes_of(path: str | Path) -> bytes:
    if is_url(path):
        return RemotePath(str(path)).read()
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error


def _decoded(raw: bytes, path: str | Path, encoding: str | None, errors: str = "strict") -> str:
    mark = next((mark for mark in _MARKS if raw.startswith(mark)), b"")
    raw, encoding = raw[len(mark) :], _MARKS.get(mark, encoding or "utf-8")
    try:
        text = raw.decode(encoding, errors)
    except UnicodeDecodeError as error:
        position = error.start
    except LookupError as error:
        raise ConfigError(
            f"Python has no encoding {encoding!r}.",
            fix="set data.encoding to a known encoding, for example to cp1252",
        ) from error
    else:
        if "\0" not in text:  # Null characters mean UTF-16 without a byte order mark.
            return text
        position = len(text[: text.index("\0")].encode(encoding, errors))
    line = len(_LINE_END.findall(raw[:position].decode(encoding, "replace"))) + 1
    raise FormatError(
        f"{path}, line {line}: the file is not encoded in {encoding.upper()}.",
        got=f"the byte 0x{raw[position]:02X} at position {len(mark) + position} of the file",
        fix="save the file as UTF-8, or set data.encoding to the encoding of the file, such as "
        "cp1252 or utf-16-le (in Python: encoding=)",
    )
