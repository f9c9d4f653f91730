"""A compact table of the monitored numbers at the end of each epoch."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from towerpack._core.logs import ONLY_FILE, get_logger
from towerpack._display.meter import clock_text
from towerpack.callbacks.monitors._base import Monitor

_GAP: Final = 4
_logger = get_logger(__name__)


class ConsoleMonitor(Monitor):
    """Show the newest numbers at the end of each epoch, with their change since the last epoch.

    A terminal shows a table, and the run's log has a line. Without a terminal, only the line.

    Args:
        include: Regular expressions. If there are any, only names in which one matches are shown.
        exclude: Regular expressions. Names in which one matches are not shown.
        console: A console of Rich; by default stderr.
        clock: Returns the current time in seconds.
    """

    def __init__(
        self,
        *,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._include = [re.compile(pattern) for pattern in include]
        self._exclude = [re.compile(pattern) for pattern in exclude]
        self._console = Console(stderr=True, highlight=False) if console is None else console
        self._clock = clock
        self._started = clock()
        self._step, self._epoch = 0, 0
        self._now: dict[str, float] = {}
        self._before: dict[str, float] = {}
        self._remarks: list[str] = []

    def set_step(self, step: int, epoch: int) -> None:
        self._step, self._epoch = step, epoch

    def put_scalar(self, name: str, value: float, step: int) -> None:
        included = not self._include or any(p.search(name) for p in self._include)
        if included and not any(p.search(name) for p in self._exclude):
            self._now[name] = value

    def remark(self, text: str) -> bool:
        self._remarks.append(text)
        return True

    def end_epoch(self) -> None:
        seconds = self._clock() - self._started
        self._started += seconds
        terminal = self._console.is_terminal
        if terminal:
            heading = (
                (f"Epoch {self._epoch}", "bold"),
                (f"  step {self._step:,}  {_duration(seconds)}", "dim"),
                *(f"  {text}" for text in self._remarks),
            )
            self._console.print(Text.assemble(*heading))
            if self._now:
                self._console.print(self._table())
        head = [f"Epoch {self._epoch}", f"step {self._step}", _duration(seconds), *self._remarks]
        values = ", ".join(f"{name} {_number(value)}" for name, value in self._now.items())
        _logger.info(
            "%s: %s", ", ".join(head), values or "no numbers", extra=ONLY_FILE if terminal else None
        )
        self._before.update(self._now)
        self._now, self._remarks = {}, []

    def _table(self) -> Table:
        """Arrange the numbers in as many columns as fit, to be read downwards."""
        cells = [self._cell(name, value) for name, value in self._now.items()]
        widths = [max(len(cell[i].plain) for cell in cells) for i in range(3)]
        width = sum(widths) + 2 * 3 + _GAP
        columns = max(1, min(4, (self._console.width - 2) // width))
        rows = -(-len(cells) // columns)
        table = Table.grid(padding=(0, 2, 0, 0))
        for _ in range(columns):
            table.add_column(min_width=widths[0], overflow="fold")
            table.add_column(min_width=widths[1], justify="right", no_wrap=True)
            table.add_column(min_width=widths[2], no_wrap=True)
        for row in range(rows):
            table.add_row(*(text for cell in cells[row::rows] for text in cell))
        return table

    def _cell(self, name: str, value: float) -> tuple[Text, Text, Text]:
        signs = "+-" if self._console.options.ascii_only else "▲▼"
        change = _change(value - self._before.get(name, math.nan), value, signs)
        number = Text(_number(value), "bold" if math.isfinite(value) else "bold red")
        return Text(f"  {name}", "cyan"), number, Text(change, "dim")


def _number(value: float) -> str:
    if value.is_integer():
        return f"{int(value):,}" if abs(value) < 1e9 else f"{value:.4g}"
    return f"{value:#.4g}" if 1e-4 <= abs(value) < 1e6 else f"{value:.3e}"


def _change(change: float, value: float, signs: str) -> str:
    if not math.isfinite(change):
        return ""
    if abs(change) <= 1e-6 * abs(value):
        return "="
    return f"{signs[change < 0]} {abs(change):.2g}"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    return clock_text(seconds) + (" min" if round(seconds) < 3600 else "")
