"""Displays in Jupyter notebooks: an output that is replaced, and tables in HTML."""

from __future__ import annotations

import html
import sys
from collections.abc import Iterable, Sequence
from typing import Any

_CELL = "padding: 0.1em 0.6em; text-align: right; white-space: nowrap"


def in_notebook() -> bool:
    """Return whether the process is the kernel of a notebook, which shows HTML."""
    ipython: Any = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


class CellOutput:
    """Output of the running cell. Each call of `show` replaces the HTML of the one before."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, content: str) -> None:
        display: Any = __import__("IPython.display", fromlist=["display"])
        if self._handle is None:
            self._handle = display.display(display.HTML(content), display_id=True)
        else:
            self._handle.update(display.HTML(content))


def html_table(columns: Iterable[str], rows: Iterable[Sequence[str]], note: str = "") -> str:
    """Return a table in HTML. A cell whose text ends in a star is bold and green."""
    head = "".join(f'<th style="{_CELL}">{html.escape(name)}</th>' for name in columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    note = f"<caption>{html.escape(note)}</caption>" if note else ""
    return f"<table>{note}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(text: str) -> str:
    style = f"{_CELL}; font-weight: bold; color: #2e9e4f" if text.endswith("*") else _CELL
    return f'<td style="{style}">{html.escape(text)}</td>'
