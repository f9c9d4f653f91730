"""What a profile found, and how it is shown."""

from __future__ import annotations

import importlib
import io
from dataclasses import dataclass
from typing import Any, Literal

Where = Literal["loop", "reader", "workers"]
_WIDTH = 100


@dataclass(frozen=True)
class StageProfile:
    """The work of one stage.

    Attributes:
        name: As messages name it.
        where: In the thread of the loop, in one that reads in order for workers, or in workers.
        datapoints: How many it gave.
        seconds: How long it was at work itself, without the stages below; of all workers together.
        share: Of the work of all stages.
        on_cpu: Share of `seconds` in which it computed; the rest it waited, for a disk, say.
        nbytes: In an average datapoint of its.
    """

    name: str
    where: Where
    datapoints: int
    seconds: float
    share: float
    on_cpu: float
    nbytes: float

    @property
    def seconds_each(self) -> float:
        """Seconds of work per datapoint."""
        return self.seconds / max(1, self.datapoints)


@dataclass(frozen=True)
class Verdict:
    """What limits a pipeline.

    Attributes:
        bottleneck: Which part of it, and why.
        advice: What to do.
    """

    bottleneck: str
    advice: str


@dataclass(frozen=True)
class ProfileReport:
    """Where the time goes. `print` shows it as a table.

    Attributes:
        pipeline: What was measured.
        datapoints: How many were read while nothing else was measured.
        seconds: How long that took, from the first datapoint on.
        nbytes: Bytes in them.
        first_s: Seconds until the first datapoint.
        stages: Sources first.
        consuming: Share of the time in which the loop was busy with datapoints that it had.
        waiting: Share of the time in which it waited for workers; the rest went into stages that
            run in the loop itself.
        workers: For each worker the share of the time in which it was busy with stages.
        reader: The same for the thread that reads in order for them; 0 if there is none.
        verdict: What limits it.
    """

    pipeline: str
    datapoints: int
    seconds: float
    nbytes: float
    first_s: float
    stages: list[StageProfile]
    consuming: float
    waiting: float
    workers: list[float]
    reader: float
    verdict: Verdict

    @property
    def datapoints_per_second(self) -> float:
        """The rate."""
        return self.datapoints / self.seconds

    @property
    def bytes_per_second(self) -> float:
        """The rate in bytes."""
        return self.nbytes / self.seconds

    def __str__(self) -> str:
        return self.text()

    def text(self, width: int = _WIDTH) -> str:
        """The table and what follows from it.

        Args:
            width: Columns to keep to.
        """
        console: Any = importlib.import_module("rich.console")  # 50 ms that few programs need
        out = io.StringIO()
        screen = console.Console(file=out, width=width, color_system=None, legacy_windows=False)
        screen.print(self.table())
        screen.print(self.summary())
        return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"

    def table(self) -> Any:
        """The stages as a `rich.table.Table`."""
        rich_table: Any = importlib.import_module("rich.table")
        rich_box: Any = importlib.import_module("rich.box")
        table = rich_table.Table(box=rich_box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        # In too little room only its names are cut off: a column that may not wrap keeps its own.
        table.add_column("stage", overflow="ellipsis")
        if self.workers:
            table.add_column("where", no_wrap=True)
        for heading in ("datapoints", "µs each", "share", "waits", "MB/s"):
            table.add_column(heading, justify="right", no_wrap=True)
        for stage in self.stages:
            # Workers are several, so their rates add up.
            rate = stage.nbytes * stage.datapoints / stage.seconds if stage.seconds else 0.0
            table.add_row(
                _plain(stage.name, no_wrap=True),
                *([stage.where] if self.workers else []),
                f"{stage.datapoints:,}",
                _number(1e6 * stage.seconds_each),
                f"{stage.share:.0%}",
                f"{1 - stage.on_cpu:.0%}" if stage.on_cpu < 0.75 else "",
                _number(rate / 1e6) if rate else "",
            )
        return table

    def summary(self) -> Any:
        """What stands below the table, as a `rich.table.Table`."""
        rich_table: Any = importlib.import_module("rich.table")
        grid = rich_table.Table.grid(padding=(0, 2, 0, 0))
        each = _number(1e6 * self.seconds / self.datapoints)
        rate = _number(self.datapoints_per_second)
        rows = {
            "pipeline": self.pipeline,
            "read": f"{self.datapoints:,} datapoints in {self.seconds:.2f} s: {rate} /s, {each} µs "
            f"each, {_number(self.bytes_per_second / 1e6)} MB/s; the first after "
            f"{self.first_s:.2f} s",
            "loop": f"{self.consuming:.0%} using datapoints, "
            f"{max(0.0, 1 - self.consuming - self.waiting):.0%} making them, "
            f"{self.waiting:.0%} waiting for workers",
            "workers": f"{len(self.workers)}, busy " + ", ".join(f"{b:.0%}" for b in self.workers),
            "reader": f"busy {self.reader:.0%}, reading in order for the workers",
            "bottleneck": self.verdict.bottleneck,
            "to do": self.verdict.advice,
        }
        for label, text in rows.items():
            if (label != "workers" or self.workers) and (label != "reader" or self.reader):
                grid.add_row(label, _plain(text))
        return grid


def _plain(text: str, *, no_wrap: bool | None = None) -> Any:
    """Text in which brackets are brackets."""
    return importlib.import_module("rich.text").Text(text, no_wrap=no_wrap)


def _number(value: float) -> str:
    """Three digits at least, without noise behind."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
