"""A bar for bytes on a terminal; elsewhere nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator

Report = Callable[[int, int | None], None]
"""Takes bytes done, and bytes in all if known."""


@contextlib.contextmanager
def byte_progress(what: str) -> Generator[Report]:
    """Lend a function that shows how far something is.

    Args:
        what: What stands before the bar.
    """
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda done, total: None
        return
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(what, total=None)

        def report(done: int, total: int | None) -> None:
            progress.update(task, completed=done, total=total)

        yield report
