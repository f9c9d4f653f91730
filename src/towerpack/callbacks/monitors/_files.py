"""Monitors that write JSON lines, which survive a killed process, or CSV for spreadsheets.

    {"step": 500, "epoch": 1, "time": 1700000000.0, "scalars": {"cost": 0.5, "lr": 0.1}}
    {"resumed_at": 300, "time": 1700000100.0}

A file of JSON lines is only appended to. The second line marks a resume at step 300, which makes
earlier records of later steps void; `read_stats` skips them. NaN and infinities, which JSON lacks,
are the strings "nan", "inf" and "-inf".
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from towerpack._core.files import (
    append_whole,
    count_of,
    csv_of,
    json_lines,
    open_lines,
    read_regular,
    replace_file,
)
from towerpack.callbacks.monitors._base import Monitor, Scalar


@dataclass(frozen=True)
class Record:
    """Numbers of one step by name, with the global step, the epoch, and seconds since 1970."""

    step: int
    epoch: int
    time: float
    scalars: Mapping[str, float]


class JSONLMonitor(Monitor):
    """Append numbers to a file of JSON lines. Images and histograms are ignored.

    A record is written when its step is over, and at each `flush`, which also syncs the file.

    Args:
        path: The file, such as the run's `stats.jsonl`; created if absent.
        clock: Returns seconds since 1970.
    """

    essential = True  # A resumed run reads its history from this file.

    def __init__(
        self, path: str | os.PathLike[str], *, clock: Callable[[], float] = time.time
    ) -> None:
        self.path = Path(path)
        self._clock = clock
        self._epoch = 0
        self._step: int | None = None
        self._scalars: dict[str, float] = {}
        self._fd: int | None = None

    def set_step(self, step: int, epoch: int) -> None:
        if step != self._step:
            self._write()
        self._epoch = epoch

    def put_scalar(self, name: str, value: float, step: int) -> None:
        if step != self._step:
            self._write()
            self._step = step
        self._scalars[name] = value

    def resume(self, step: int) -> Iterable[Scalar]:
        self._write()
        if not self.path.exists() or self.path.stat().st_size == 0:
            return ()
        self._append({"resumed_at": step, "time": self._clock()})
        return (
            Scalar(name, record.step, value)
            for record in read_stats(self.path)
            for name, value in record.scalars.items()
        )

    def flush(self) -> None:
        self._write()
        if self._fd is not None:
            os.fsync(self._fd)

    def close(self) -> None:
        self.flush()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __repr__(self) -> str:
        return f"JSONLMonitor({str(self.path)!r})"

    def _write(self) -> None:
        if not self._scalars:
            return
        scalars, self._scalars = self._scalars, {}
        numbers = {n: v if math.isfinite(v) else repr(v) for n, v in scalars.items()}
        position = {"step": self._step, "epoch": self._epoch, "time": self._clock()}
        self._append({**position, "scalars": numbers})

    def _append(self, tree: dict[str, Any]) -> None:
        if self._fd is None:
            self._fd = open_lines(self.path)
        line = json.dumps(tree, allow_nan=False).encode() + b"\n"
        append_whole(self._fd, line)


def read_stats(path: str | os.PathLike[str]) -> list[Record]:
    """Read the valid records of a `stats.jsonl`, one for each step, oldest first.

    Several records of a step are merged; the last value of a name is used. An incomplete last line
    is skipped. A damaged line elsewhere is skipped with a warning.

    Args:
        path: The file.
    """
    records: list[Record] = []
    for entry in json_lines(read_regular(path), path, _parse):
        if not isinstance(entry, Record):
            while records and records[-1].step > entry:
                records.pop()
            continue
        if records and records[-1].step == entry.step:
            entry = replace(entry, scalars={**records.pop().scalars, **entry.scalars})
        records.append(entry)
    return records


def _parse(tree: dict[str, Any]) -> Record | int:
    if "resumed_at" in tree:
        return count_of(tree["resumed_at"])
    scalars = {str(name): float(value) for name, value in dict(tree["scalars"]).items()}
    step, epoch = count_of(tree["step"]), count_of(tree["epoch"])
    return Record(step, epoch, float(tree["time"]), scalars)


class CSVMonitor(Monitor):
    """Write one line per epoch to a CSV file: step, epoch and the latest value of each number.

    A new name adds a column, and the file is rewritten. A resumed run removes the
    lines after its step.

    Args:
        path: The file; created if absent.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._now: dict[str, str] = {}
        self._columns: list[str] = []

    def set_step(self, step: int, epoch: int) -> None:
        self._now |= {"step": str(step), "epoch": str(epoch)}

    def put_scalar(self, name: str, value: float, step: int) -> None:
        self._now[name] = repr(value)

    def end_epoch(self) -> None:
        new = [name for name in self._now if name not in self._columns]
        if new or not self.path.exists():
            self._columns += new
            rows = [[row.get(c, "") for c in self._columns] for row in [*self._rows(), self._now]]
            self.path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self.path, csv_of([self._columns, *rows]))
        else:
            with open(open_lines(self.path), "ab") as file:
                line = csv_of([[self._now.get(c, "") for c in self._columns]])
                append_whole(file.fileno(), line)
        self._now = {}

    def resume(self, step: int) -> Iterable[Scalar]:
        self._columns = []
        rows = [row for row in self._rows() if int(row["step"]) <= step]
        if rows:
            self._columns = list(rows[0])
            replace_file(self.path, csv_of([self._columns, *(row.values() for row in rows)]))
        else:
            self.path.unlink(missing_ok=True)
        return ()

    def __repr__(self) -> str:
        return f"CSVMonitor({str(self.path)!r})"

    def _rows(self) -> list[dict[str, str]]:
        if not self.path.exists():
            return []
        complete = read_regular(self.path).decode().rpartition("\n")[0]
        rows = csv.DictReader(io.StringIO(complete))
        return [row for row in rows if row.get("step", "").isdigit()]
