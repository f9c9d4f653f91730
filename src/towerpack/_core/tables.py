"""Strict decoding of users' text files: texts, lines and rows of tables."""

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
    """Row of a table and its position in a file. `str` returns the position for messages."""

    fields: list[str]
    path: str
    line: int

    def __str__(self) -> str:
        return f"{self.path}, line {self.line}"


def read_text(path: str | Path, encoding: str | None = None) -> str:
    """Return the text of a file with line feeds as line ends.

    Args:
        path: File.
        encoding: Encoding of a file without a byte order mark; None for UTF-8. Byte order marks of
            UTF-8 and UTF-16 take priority.
    """
    return _LINE_END.sub("\n", _decoded(_bytes_of(path), path, encoding))


def lines_of(text: str) -> list[str]:
    """Return the lines of a text from `read_text`. Only line feeds end lines, form feeds do not."""
    return text.removesuffix("\n").split("\n") if text else []


def read_rows(
    path: str | Path,
    encoding: str | None = None,
    *,
    delimiter: str | None = None,
    quotechar: str | None = None,
    is_file: Callable[[str], bool] | None = None,
) -> list[Row]:
    """Return the rows of a table without empty lines.

    Args:
        path: File.
        encoding: Same as for `read_text`.
        delimiter: Separator of fields. None for the first of comma, semicolon and tab (tab, comma
            and semicolon, if the name does not end in `.csv`) that all of the first lines contain,
            or else the first line.
        quotechar: Quotation mark of fields. None for a double quote, or a single quote if the first
            field begins with one. Fields separated by tabs have no quotes, except in `.csv` files.
        is_file: Whether a field names a file. File names may have another encoding.
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
            f"{path}, line {number}: the quotation marks are not balanced.",
            got=str(error),
            fix="put texts that begin with a quotation mark in quotation marks, and double marks "
            "inside",
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

    The label of a header is not an integer and occurs in no other row, and its other fields are no
    items.

    Args:
        rows: Rows of the table.
        label: Index of the label column.
        is_item: Whether a field of another column is data, such as a file name.
    """
    if not rows or len(rows[0].fields) <= label or _INTEGER.fullmatch(rows[0].fields[label]):
        return False
    items = [field.strip() for field in rows[0].fields]
    name = items.pop(label)
    others = (row.fields[label].strip() for row in rows[1:] if len(row.fields) > label)
    return not any(map(is_item, items)) and name not in others


def warn_of_similar(labels: Iterable[tuple[str, Any]]) -> None:
    """Log labels that differ only in case, spaces or Unicode form.

    Args:
        labels: Label and position of each row.
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
            f"The encoding {encoding!r} is unknown.", fix="set data.encoding, for example to cp1252"
        ) from error
    else:
        if "\0" not in text:  # Null characters mean UTF-16 without a byte order mark.
            return text
        position = len(text[: text.index("\0")].encode(encoding, errors))
    line = len(_LINE_END.findall(raw[:position].decode(encoding, "replace"))) + 1
    raise FormatError(
        f"{path}, line {line} is not {encoding.upper()} text.",
        got=f"the byte 0x{raw[position]:02X} at position {len(mark) + position} of the file",
        fix="save the file as UTF-8 (or UTF-16 with a byte order mark), or set data.encoding to "
        "its encoding, such as cp1252 or utf-16-le (in Python: encoding=)",
    )
