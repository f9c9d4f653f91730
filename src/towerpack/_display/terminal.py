"""Progress rows below the log lines of a terminal or notebook, drawn without a thread."""

from __future__ import annotations

import functools
import io
import logging
import os
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from towerpack._display.meter import Meter, clock_text
from towerpack._display.notebook import CellOutput, in_notebook

_SHORTEST_BAR = 8
_LONGEST_BAR = 40
_LONG_S = 2.0
_REDRAW_S = 0.2
_NOTEBOOK_COLUMNS = 110

Row = Callable[["Style", int], Text]
"""Function that returns a progress row for a style and a width in columns."""


class Style:
    """Characters and colors that a terminal supports."""

    def __init__(self, console: Console) -> None:
        self.ascii_only = console.options.ascii_only
        self.colors = console.color_system is not None and not console.no_color

    def bar(self, share: float, width: int) -> Text:
        halves = round(max(0.0, min(1.0, share)) * 2 * width)
        if self.ascii_only:
            return Text("#" * (halves // 2) + "-" * (width - halves // 2))
        filled = "━" * (halves // 2) + "╸" * (halves % 2)
        rest = ("━" if self.colors else " ") * (width - len(filled))
        return Text.assemble((filled, "green" if share >= 1 else "cyan"), (rest, "grey30"))

    def line(
        self, width: int, *, head: str, done: int, total: int | None, parts: Sequence[str]
    ) -> Text:
        """Return a row: `head`, a bar if `total` is known, a count, and the `parts` that fit."""
        share = None if total is None else done / max(1, total)
        count = f"{done:,}" if total is None else f"{done:>{len(f'{total:,}')},}/{total:,}"
        separator = " - " if self.ascii_only else " · "
        used = len(head) + 1 + len(count)
        bar_space = 0 if share is None else _SHORTEST_BAR + 1
        shown = []
        for part in parts:
            if used + len(separator) + len(part) + bar_space > width:
                break
            used += len(separator) + len(part)
            shown.append(part)
        text = Text(no_wrap=True, overflow="crop", end="")
        text.append(head, "bold")
        bar_width = min(_LONGEST_BAR, width - used - 1)
        if share is not None and bar_width >= _SHORTEST_BAR:
            text.append(" ").append_text(self.bar(share, bar_width))
        text.append(f" {count}")
        for part in shown:
            text.append(separator, "dim").append(part)
        text.truncate(width, overflow="crop" if self.ascii_only else "ellipsis")
        return text


class Screen:
    """Progress rows at the bottom of a terminal. Log lines and printed text appear above them."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rows: list[Row] = []
        self._live: Live | None = None
        self._undo: list[Callable[[], object]] = []

    def show(self, row: Row) -> None:
        self._rows.append(row)
        if self._live is None:
            self._start()
        self.draw()

    def hide(self, row: Row) -> None:
        if row not in self._rows:
            return
        self._rows.remove(row)
        if self._rows:
            self.draw()
        else:
            self._stop()

    def draw(self) -> None:
        if self._live is not None:
            self._live.refresh()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        style = Style(console)
        yield Text("\n", end="").join([row(style, options.max_width) for row in self._rows])

    def _start(self) -> None:
        self._live = Live(
            self, console=self._console, auto_refresh=False, transient=True, redirect_stdout=False,
            redirect_stderr=False,
        )  # fmt: skip
        self._live.start()
        handlers = _stream_handlers()
        for name in ("stderr", "stdout"):
            stream = getattr(sys, name)
            # Leave output to files and pipes unchanged.
            if stream is None or not stream.isatty():
                continue
            above = _LinesAboveRows(self._console, stream)
            setattr(sys, name, above)
            self._undo.append(functools.partial(setattr, sys, name, stream))
            self._undo.append(above.finish)
            for handler in handlers:
                if handler.stream is stream:
                    handler.setStream(above)
                    self._undo.append(functools.partial(handler.setStream, stream))

    def _stop(self) -> None:
        while self._undo:
            self._undo.pop()()
        live, self._live = self._live, None
        if live is not None:
            live.stop()


class _NotebookScreen(Screen):
    """Rows in an output of a notebook's cell, which is empty while no row is shown."""

    def __init__(self) -> None:
        super().__init__(Console(width=_NOTEBOOK_COLUMNS))
        self._output = CellOutput()

    def draw(self) -> None:
        page = Console(
            file=io.StringIO(), width=_NOTEBOOK_COLUMNS, record=True, force_terminal=True,
            force_jupyter=False, color_system="truecolor",
        )  # fmt: skip
        page.print(self)
        # The colors of the page are the notebook's, light or dark.
        self._output.show(page.export_html(inline_styles=True, code_format="<pre>{code}</pre>"))

    def _start(self) -> None:
        pass

    def _stop(self) -> None:
        self._output.show("")


class _LinesAboveRows:
    """Replacement for stdout or stderr that prints lines above the progress rows.

    Rich's own replacement wraps long lines, so paths and tracebacks could not be copied.
    """

    def __init__(self, console: Console, stream: TextIO) -> None:
        self._console = console
        self._rest = ""
        self.rich_proxied_file = stream  # attribute from which Rich takes the original stream

    def write(self, text: str) -> int:
        with self._console:
            complete, newline, self._rest = (self._rest + text).rpartition("\n")
            if newline:
                lines = Text.from_ansi(complete)
                self._console.print(lines, soft_wrap=True, markup=False, highlight=False)
        return len(text)

    def flush(self) -> None:
        pass  # an incomplete line is printed when it ends

    def finish(self) -> None:
        if self._rest:
            self.write("\n")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


def _stream_handlers() -> list[logging.StreamHandler[Any]]:
    loggers = [logging.getLogger(), *logging.getLogger().manager.loggerDict.values()]
    return [
        handler
        for logger in loggers
        if isinstance(logger, logging.Logger)
        for handler in logger.handlers
        if isinstance(handler, logging.StreamHandler)
    ]


_shared: Screen | None = None


def screen() -> Screen | None:
    """Return the process's screen; None if stderr cannot redraw lines.

    In a notebook, return a new screen, since each cell has its own output.
    """
    global _shared
    if in_notebook():
        return _NotebookScreen()
    if not sys.stderr.isatty() or os.environ.get("TERM", "dumb") in ("dumb", "unknown"):
        return None
    if _shared is None:
        _shared = Screen(Console(stderr=True, highlight=False))
    return _shared


@contextmanager
def task(name: str, total: int | None) -> Generator[Callable[[], None]]:
    """Show a progress bar for work that takes more than two seconds.

    `total` is the number of parts; None if unknown. Yields a function to call after each part.
    """
    shared = screen()
    if shared is None:
        yield lambda: None
        return
    meter = Meter()
    start = drawn = time.monotonic()
    done, shown = 0, False
    meter.restart(start, 0)

    def row(style: Style, width: int) -> Text:
        parts = []
        if total is not None and meter.rate:
            parts.append(f"{clock_text(max(0, total - done) / meter.rate)} left")
        return style.line(width, head=name, done=done, total=total, parts=parts)

    def advance() -> None:
        nonlocal done, drawn, shown
        done += 1
        now = time.monotonic()
        if now - start < _LONG_S or now - drawn < _REDRAW_S:
            return
        drawn = now
        meter.sample(now, done)
        if shown:
            shared.draw()
        else:
            shown = True
            shared.show(row)

    try:
        yield advance
    finally:
        shared.hide(row)
