"""The lowest lines of the terminal: rows that are drawn anew while log lines pass above them.

One screen for the process, since there is one terminal. No thread draws: what moves, moves because
work was done.
"""

from __future__ import annotations

import functools
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

_SHORTEST_BAR = 8
_LONGEST_BAR = 40
_LONG_S = 2.0
_REDRAW_S = 0.2

Row = Callable[["Style", int], Text]
"""Draws a row: takes the terminal's abilities and its width in columns."""


class Style:
    """What the terminal can show.

    Args:
        console: The terminal.
    """

    def __init__(self, console: Console) -> None:
        self.ascii_only = console.options.ascii_only
        self.colours = console.color_system is not None and not console.no_color

    def bar(self, share: float, width: int) -> Text:
        """A bar of some columns, filled to a share from 0 to 1."""
        halves = round(max(0.0, min(1.0, share)) * 2 * width)
        if self.ascii_only:
            return Text("#" * (halves // 2) + "-" * (width - halves // 2))
        filled = "━" * (halves // 2) + "╸" * (halves % 2)
        rest = ("━" if self.colours else " ") * (width - len(filled))
        return Text.assemble((filled, "green" if share >= 1 else "cyan"), (rest, "grey30"))

    def line(
        self, width: int, *, head: str, share: float | None, count: str, parts: Sequence[str]
    ) -> Text:
        """Head, bar, count, and as many of the parts as fit, the first ones first.

        Args:
            width: Columns.
            head: What is going on.
            share: How much of it is done; None if unknown, which leaves the bar out.
            count: Done and total, in numbers.
            parts: The most important first.
        """
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
    """Rows at the bottom of a terminal.

    While there are any, what the logging handlers and `print` write to this terminal appears above.

    Args:
        console: The terminal.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rows: list[Row] = []
        self._live: Live | None = None
        self._undo: list[Callable[[], object]] = []

    def show(self, row: Row) -> None:
        """Add a row below the others."""
        self._rows.append(row)
        if self._live is None:
            self._start()
        self.draw()

    def hide(self, row: Row) -> None:
        """Take a row away; nothing of it stays."""
        if row not in self._rows:
            return
        self._rows.remove(row)
        if self._rows:
            self.draw()
        else:
            self._stop()

    def draw(self) -> None:
        """Draw all rows as they are now."""
        if self._live is not None:
            self._live.refresh()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        style = Style(console)
        yield Text("\n", end="").join([row(style, options.max_width) for row in self._rows])

    def _start(self) -> None:
        self._live = Live(
            self,
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()
        handlers = _stream_handlers()
        for name in ("stderr", "stdout"):
            stream = getattr(sys, name)
            # Output that goes to a file or a pipe is none of ours.
            if stream is None or not stream.isatty():
                continue
            above = _Above(self._console, stream)
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


class _Above:
    """Stand-in for a stream to the terminal: prints its lines above the rows.

    Rich has such a proxy too, but breaks long lines for good where the terminal ends, which spoils
    paths and tracebacks that are copied from it later.
    """

    def __init__(self, console: Console, stream: TextIO) -> None:
        self._console = console
        self._rest = ""
        self.rich_proxied_file = stream  # where a Console of Rich looks for the real one

    def write(self, text: str) -> int:
        """Print what is complete, keep the rest."""
        with self._console:
            whole, newline, self._rest = (self._rest + text).rpartition("\n")
            if newline:
                lines = Text.from_ansi(whole)
                self._console.print(lines, soft_wrap=True, markup=False, highlight=False)
        return len(text)

    def flush(self) -> None:
        """Nothing: half a line waits for the other half."""

    def finish(self) -> None:
        """Print what has no end yet."""
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
    """The process's screen; None if stderr is not a terminal that can redraw lines."""
    global _shared
    if not sys.stderr.isatty() or os.environ.get("TERM", "dumb") in ("dumb", "unknown"):
        return None
    if _shared is None:
        _shared = Screen(Console(stderr=True, highlight=False))
    return _shared


@contextmanager
def task(name: str, total: int | None) -> Generator[Callable[[], None]]:
    """A row for one piece of work, shown once it has taken two seconds.

    Args:
        name: What is done.
        total: How many parts it has; None if unknown.

    Yields:
        A function to call after each part.
    """
    where = screen()
    if where is None:
        yield lambda: None
        return
    meter = Meter()
    began = drawn = time.monotonic()
    done = 0
    shown = False
    meter.restart(began, 0)

    def row(style: Style, width: int) -> Text:
        parts = []
        if total is not None and meter.rate:
            parts.append(f"{clock_text(max(0, total - done) / meter.rate)} left")
        share = None if total is None else done / max(1, total)
        count = f"{done:,}" if total is None else f"{done:>{len(f'{total:,}')},}/{total:,}"
        return style.line(width, head=name, share=share, count=count, parts=parts)

    def advance() -> None:
        nonlocal done, drawn, shown
        done += 1
        now = time.monotonic()
        if now - began < _LONG_S or now - drawn < _REDRAW_S:
            return
        drawn = now
        meter.sample(now, done)
        if shown:
            where.draw()
        else:
            shown = True
            where.show(row)

    try:
        yield advance
    finally:
        where.hide(row)
