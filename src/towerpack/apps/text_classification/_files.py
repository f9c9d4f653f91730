"""Texts with labels in files: tables, one text a line, a file for each."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TextIO

from towerpack._core.errors import ConfigError, FormatError
from towerpack.apps.text_classification._config import DataConfig
from towerpack.dataflow.sources._discovery import NO_TEXT, Discovery, is_text

Example = tuple[str, str, str]
"""Text, name of its class, and where it is, for messages."""

PREFIX: Final = "__label__"


def read_table(path: Path, config: DataConfig) -> Iterator[Example]:
    """Rows of a table: commas and double quotes in a `.csv`, tabs and no quotes otherwise.

    Raises:
        ConfigError: There is no such file or column.
        FormatError: A row has no such column.
    """
    tabs = path.suffix.lower() != ".csv"
    form: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if tabs else {}
    before = csv.field_size_limit(sys.maxsize)
    try:
        with _opened(path) as file:
            rows = csv.reader(file, **form)
            numbers = _columns(path, rows, [config.text, config.label])
            for row in rows:
                if not row:
                    continue
                where = f"{path}, line {rows.line_num}"
                if len(row) <= max(numbers):
                    raise FormatError(
                        f"{where} has {len(row)} columns.", expected=f"at least {max(numbers) + 1}"
                    )
                yield row[numbers[0]], row[numbers[1]], where
    except csv.Error as error:
        raise FormatError(f"{path}: {error}.") from error
    finally:
        csv.field_size_limit(before)


def read_lines(path: Path, config: DataConfig) -> Iterator[Example]:
    """Lines `__label__CLASS text`, as fastText's; or texts alone, with classes in `NAME.labels`.

    Raises:
        ConfigError: There is no such file.
        FormatError: A line has no label, or both files are of different length.
    """
    del config
    listed = path.with_suffix(".labels")
    with _opened(path) as file:
        texts = [line.rstrip("\r\n") for line in file]
    if listed.is_file():
        with _opened(listed) as file:
            labels = [line.strip() for line in file]
    else:
        parts = [text.partition(" ") for text in texts]
        for number, (label, _, _) in enumerate(parts, 1):
            if not label.startswith(PREFIX) or label == PREFIX:
                raise FormatError(
                    f"{path}, line {number} has no label.",
                    got=repr(label[:40]),
                    expected=f"{PREFIX}CLASS text, or the file {listed.name}",
                )
        labels, texts = [p[0].removeprefix(PREFIX) for p in parts], [p[2] for p in parts]
    if len(labels) != len(texts):
        raise FormatError(
            f"{listed} has {len(labels)} lines, and {path} has {len(texts)}.",
            expected="a label for each text",
        )
    for number, pair in enumerate(zip(texts, labels, strict=True), 1):
        yield *pair, f"{path}, line {number}"


def read_folder(path: Path, config: DataConfig) -> Iterator[Example]:
    """Read the texts below the folder of each class.

    Names of texts end in `.txt`, `.text`, `.md`, `.markdown` or `.rst`, in any case, or have no
    extension. IMDB's `unsup`, which has no labels, is left out.

    Raises:
        ConfigError: There is no such folder, or none with texts in it.
    """
    del config
    discovery = Discovery(is_text, NO_TEXT)
    names = discovery.folders(path)
    files = list(discovery.by_class(path, names))
    discovery.report(path)
    if not files:
        raise ConfigError(f"There are no texts in {path}.", expected="CLASS/*.txt")
    for number, file in files:
        if names[number] != "unsup":
            yield Path(file).read_text(encoding="utf-8", errors="replace"), names[number], file


READERS: Final[dict[str, tuple[tuple[str, ...], Callable[..., Iterator[Example]]]]] = {
    "table": (("{}.csv", "{}.tsv"), read_table),
    "lines": (("{}.txt",), read_lines),
    "folder": (("{}",), read_folder),
}
"""Usual names, and what reads one file or folder."""


def _opened(path: Path) -> TextIO:
    try:
        return path.open(encoding="utf-8-sig", errors="replace", newline="")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error


def _columns(path: Path, rows: Iterator[list[str]], wanted: list[str | int]) -> list[int]:
    """Numbers of columns; where one is wanted by name, the first row has the names."""
    names = [column for column in wanted if isinstance(column, str)]
    header = next(rows, []) if names else []
    missing = [name for name in names if name not in header]
    if missing:
        raise ConfigError(
            f"{path} has no column {missing[0]!r}.",
            got=", ".join(header)[:200],
            fix="data.text=… data.label=…: names in its first line, or numbers without such a line",
        )
    return [c if isinstance(c, int) else header.index(c) for c in wanted]
