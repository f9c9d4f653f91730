"""Helpers of all commands for tables and text on the terminal."""

from __future__ import annotations

import codecs
import io
import re
import sys
from collections.abc import Iterable
from numbers import Integral

from rich import box, markup
from rich.console import Console
from rich.table import Table
from rich.text import Text

_WIDTH_OF_PIPES = 160
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# Single characters, so that columns stay aligned.
_PLAIN = str.maketrans("✓✗·→×…µ─│├└", "+x->x~u-|++")


def visible(text: str) -> str:
    """Escape control characters, which could hide or replace text in a terminal."""
    return _CONTROL.sub(lambda match: ascii(match[0])[1:-1], text)


def escape(text: str) -> str:
    """Escape control characters and Rich markup in untrusted text."""
    return markup.escape(visible(text))


def console() -> Console:
    """Create a Rich console for tables on standard output."""
    terminal = Console(highlight=False)
    # Without a terminal, Rich limits tables to 80 columns. Files and pipes have no such limit.
    return terminal if terminal.is_terminal else Console(highlight=False, width=_WIDTH_OF_PIPES)


def table(*columns: str, title: str | None = None) -> Table:
    """Create an empty table. A column title that begins with `>` aligns the column to the right."""
    rows = Table(
        box=box.SIMPLE_HEAD,
        title=title,
        title_justify="left",
        title_style="bold",
        pad_edge=False,
        header_style="dim",
    )
    for number, column in enumerate(columns):
        right, style = column.startswith(">"), None if number else "cyan"
        justify = "right" if right else "left"
        name = column.removeprefix(">")
        rows.add_column(name, justify=justify, no_wrap=right, overflow="fold", style=style)
    return rows


def print_rows(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Print a table of texts, integers and floats. `columns` are those of `table`."""
    cells = table(*columns)
    for row in rows:
        cells.add_row(*map(_cell, row))
    console().print(cells)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, Integral) else escape(str(value))


def pairs(rows: Iterable[tuple[str, str | Text]]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for row in rows:
        grid.add_row(*row)
    return grid


def write_plainly() -> None:
    """Replace characters that the encoding of the terminal lacks, instead of failing."""
    codecs.register_error("towerpack", _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors != "surrogateescape":
            stream.reconfigure(errors="towerpack")


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(_PLAIN)
    return "".join(c if c.isascii() else "?" for c in text), error.end
