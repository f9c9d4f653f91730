from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator
from itertools import count

from towerpack._core.errors import DataFlowError
from towerpack.dataflow._flow import DataFlow
from towerpack.dataflow.datapoints import Datapoint

_REDRAW_S = 0.1


@contextlib.contextmanager
def progress(title: str, total: float | None) -> Generator[Callable[[float], None]]:
    """Show a progress bar. The yielded function updates it with the amount of `total` done."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda done: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task(title, total=total)
        drawn = 0.0

        def tick(done: float) -> None:
            nonlocal drawn
            if time.monotonic() - drawn > _REDRAW_S:
                bar.update(task, completed=done, refresh=True)
                drawn = time.monotonic()

        yield tick


def endless(ds: DataFlow, *, seed: int | None = None) -> Generator[Datapoint]:
    for epoch in count():
        empty = True
        with ds.iterate(seed=seed, epoch=epoch) as iterator:
            for datapoint in iterator:
                yield datapoint
                empty = False
        if empty:
            raise DataFlowError("A pass has no datapoints.", pipeline=str(ds))
