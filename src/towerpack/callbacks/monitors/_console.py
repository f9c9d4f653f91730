"""Monitor that shows a row of numbers at the end of each epoch."""

from __future__ import annotations

import math
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from rich.console import Console
from rich.text import Text

from towerpack._core.logs import ONLY_FILE, get_logger
from towerpack._display.meter import clock_text
from towerpack._display.notebook import CellOutput, html_table, in_notebook
from towerpack.callbacks.monitors._base import Monitor

_FIXED: Final = {"epoch": 5, "step": 7, "time": 8}  # columns of every table, and their widths
_WIDTH: Final = 9  # of a number
_TIMESTAMP: Final = 9  # characters in front of a line of the log
_NOTEBOOK_COLUMNS: Final = 110
_NOTEBOOK_ROWS: Final = 30  # newest epochs in the table of a notebook
_OF_THE_MACHINE: Final = ("throughput/", "queue/", "time/", "memory/", "gpu/")
_logger = get_logger(__name__)


class ConsoleMonitor(Monitor):
    """Show a row of numbers at the end of each epoch, on stderr and in the run's log.

    A header names the columns, and is repeated when they change. A star marks the best value so far
    of a number that a `BestSaver` watches. If not all columns fit into the width of the terminal
    (80 characters in files and pipes), columns are left out in this order: measurements of the
    machine (`throughput/`, `queue/`, …), the learning rate, other numbers of training, numbers of
    evaluations, the cost and the numbers with a star. `stats.jsonl` has all numbers.

    In a notebook the cell shows one table, with the newest 30 epochs.

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
        self._values: dict[str, float] = {}
        self._remarks: list[str] = []
        self._names: dict[str, None] = {}  # all that were shown, in the order in which they came
        self._watched: set[str] = set()  # names that ever had a star
        self._columns: list[str] = []
        self._output = CellOutput() if console is None and in_notebook() else None
        self._epochs: deque[tuple[Sequence[str], dict[str, str]]] = deque(maxlen=_NOTEBOOK_ROWS)

    def set_step(self, step: int, epoch: int) -> None:
        self._step, self._epoch = step, epoch

    def put_scalar(self, name: str, value: float, step: int) -> None:
        included = not self._include or any(p.search(name) for p in self._include)
        if included and not any(p.search(name) for p in self._exclude):
            self._values[name] = value

    def remark(self, text: str) -> bool:
        self._remarks.append(text)
        return True

    def end_epoch(self) -> None:
        seconds = self._clock() - self._started
        self._started += seconds
        starred = {n for n in self._values if any(n in text.split() for text in self._remarks)}
        self._watched |= starred
        self._names.update(dict.fromkeys(self._values))
        columns = self._fitting_columns()
        if columns != self._columns:
            self._columns = columns
            names = _aligned(_FIXED, _FIXED.values()), _aligned(columns, map(_width, columns))
            self._print(Text("  ".join(filter(None, names)), "dim"))
        position = f"{self._epoch}", f"{self._step:,}", _duration(seconds)
        row = Text(_aligned(position, _FIXED.values()))
        for name in columns:
            value = self._values.get(name)
            text = "" if value is None else _number(value)
            style = "" if value is None or math.isfinite(value) else "bold red"
            gap = " " if row.plain.endswith("*") else "  "
            row.append(gap).append(f"{text:>{_width(name)}}", style)
            if name in starred:  # in the first of the two blanks behind the number
                row.stylize("bold green", len(row) - len(text))
                row.append("*", "bold green")
        others = [t for t in self._remarks if not starred & set(t.split())]
        row.append("".join(f"  {text}" for text in others), "dim")
        self._print(row)
        texts = {n: _number(v) + "*" * (n in starred) for n, v in self._values.items()}
        self._epochs.append((position, texts))
        if self._output is not None:
            self._output.show(self._repr_html_())
        self._values, self._remarks = {}, []

    def _repr_html_(self) -> str:
        rows = [
            (*position, *(texts.get(name, "") for name in self._columns))
            for position, texts in self._epochs
        ]
        return html_table([*_FIXED, *self._columns], rows)

    def _print(self, row: Text) -> None:
        terminal = self._console.is_terminal
        if terminal:
            self._console.print(row, no_wrap=True, overflow="ignore", crop=False)
        shown = terminal or self._output is not None
        _logger.info("%s", row.plain.rstrip(), extra=ONLY_FILE if shown else None)

    def _fitting_columns(self) -> list[str]:
        width = self._console.width - (0 if self._console.is_terminal else _TIMESTAMP)
        width = width if self._output is None else _NOTEBOOK_COLUMNS
        width -= sum(_FIXED.values()) + 2 * len(_FIXED)
        fitting: set[str] = set()
        for name in sorted(self._names, key=self._rank):
            width -= _width(name) + 2
            if width < 0:
                break
            fitting.add(name)
        return [name for name in self._names if name in fitting]

    def _rank(self, name: str) -> int:
        if name == "cost" or name in self._watched:
            return 0
        if name.startswith(_OF_THE_MACHINE):
            return 4
        return 1 if name.startswith("val") else 3 if name == "learning_rate" else 2


def _aligned(texts: Iterable[str], widths: Iterable[int]) -> str:
    return "  ".join(f"{text:>{width}}" for text, width in zip(texts, widths, strict=True))


def _width(name: str) -> int:
    return max(len(name), _WIDTH)


def _number(value: float) -> str:
    if value.is_integer():
        return f"{int(value):,}" if abs(value) < 1e9 else f"{value:.4g}"
    return f"{value:#.4g}" if 1e-4 <= abs(value) < 1e6 else f"{value:.3e}"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    return clock_text(seconds) + (" min" if round(seconds) < 3600 else "")
