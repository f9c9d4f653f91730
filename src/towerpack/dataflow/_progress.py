"""A bar for seconds on a terminal; elsewhere nothing."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator

Tick = Callable[[float], None]
"""Takes how much is done."""

_REDRAW_S = 0.1


@contextlib.contextmanager
def progress(what: str, total: float | None) -> Generator[Tick]:
    """Lend a function that shows how far something is.

    Args:
        what: What stands before the bar.
        total: What `done` will be at the end, if that is known.
    """
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda done: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task(what, total=total)
        drawn = 0.0

        def tick(done: float) -> None:
            nonlocal drawn
            if time.monotonic() - drawn > _REDRAW_S:
                bar.update(task, completed=done, refresh=True)
                drawn = time.monotonic()

        yield tick
