"""Numbers in files: JSON lines, which survive kills, and CSV for spreadsheets.

    {"step": 500, "epoch": 1, "time": 1700000000.0, "scalars": {"cost": 0.5, "lr": 0.1}}
    {"resumed_at": 300, "time": 1700000100.0}

JSON lines are only ever appended to. After a resume at step 300 the records of later steps before
that line are void; `read_stats` leaves them out, so that a reader sees the run as if it had never
been disturbed. nan and the infinities, which JSON lacks, are the strings "nan", "inf" and "-inf".
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
from typing import Any, cast

from towerpack._core.files import append_whole, csv_of, open_lines, open_plain, replace_file
from towerpack._core.logs import get_logger
from towerpack.callbacks.monitors._base import Monitor, Scalar

_logger = get_logger(__name__)


@dataclass(frozen=True)
class Record:
    """The numbers of one step, or a part of them.

    Attributes:
        step: The global step.
        epoch: The epoch's number.
        time: Seconds since 1970.
        scalars: Name to value.
    """

    step: int
    epoch: int
    time: float
    scalars: Mapping[str, float]


class JSONLMonitor(Monitor):
    """Append numbers to a file. Pictures and histograms are not for it.

    A record is written when its step is over, and at each `flush`, which also syncs the file. A
    last line that a kill has torn is cut off before the file is appended to.

    Args:
        path: The file, such as the run's `stats.jsonl`; made if absent.
        clock: Seconds since 1970.
    """

    essential = True  # The history of a run that goes on.

    def __init__(
        self, path: str | os.PathLike[str], *, clock: Callable[[], float] = time.time
    ) -> None:
        self.path = Path(path)
        self._clock = clock
        self._epoch = 0
        self._step: int | None = None
        self._scalars: dict[str, float] = {}
        self._fd: int | None = None

    def at(self, step: int, epoch: int) -> None:
        if step != self._step:
            self._write()
        self._epoch = epoch

    def put_scalar(self, name: str, value: float, step: int) -> None:
        if step != self._step:
            self._write()
            self._step = step
        self._scalars[name] = value

    def resume(self, step: int) -> Iterable[Scalar]:
        """Void what the file says of later steps; returns the rest."""
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
        """Write, and wait until it is on disk."""
        self._write()
        if self._fd is not None:
            os.fsync(self._fd)

    def close(self) -> None:
        """Flush and close the file; what comes later opens it again."""
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
        found = {n: v if math.isfinite(v) else repr(v) for n, v in scalars.items()}
        place = {"step": self._step, "epoch": self._epoch, "time": self._clock()}
        self._append({**place, "scalars": found})

    def _append(self, tree: dict[str, Any]) -> None:
        if self._fd is None:
            self._fd = open_lines(self.path)
        line = json.dumps(tree, allow_nan=False).encode() + b"\n"
        append_whole(self._fd, line)


def read_stats(path: str | os.PathLike[str]) -> list[Record]:
    """The records of a `stats.jsonl` that count, one for each step, oldest first.

    What was written of a step in parts, or again after a resume, is put together; the value written
    last holds. A torn last line is left out. A damaged line elsewhere is left out with a warning.
    """
    records: list[Record] = []
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                break
            try:
                entry = _parse(line)
            except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
                _logger.warning("%s, line %d is left out: %s.", path, number, error)
                continue
            if isinstance(entry, Record):
                if records and records[-1].step == entry.step:
                    entry = replace(entry, scalars={**records.pop().scalars, **entry.scalars})
                records.append(entry)
            else:
                records = [record for record in records if record.step <= entry]
    return records


def _parse(line: bytes) -> Record | int:
    tree = json.loads(line)
    if not isinstance(tree, dict):
        raise ValueError("not an object")
    fields = cast("dict[str, Any]", tree)
    if "resumed_at" in fields:
        return int(fields["resumed_at"])
    scalars = {str(name): float(value) for name, value in dict(fields["scalars"]).items()}
    return Record(int(fields["step"]), int(fields["epoch"]), float(fields["time"]), scalars)


class CSVMonitor(Monitor):
    """Write each epoch's newest numbers as a line of a CSV file, after its step and epoch.

    A number that comes for the first time gets a new column, and the file is written anew. After a
    resume, lines of later steps are gone.

    Args:
        path: The file; made if absent.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._now: dict[str, str] = {}
        self._columns: list[str] = []

    def at(self, step: int, epoch: int) -> None:
        self._now |= {"step": str(step), "epoch": str(epoch)}

    def put_scalar(self, name: str, value: float, step: int) -> None:
        self._now[name] = repr(value)

    def end_epoch(self) -> None:
        new = [name for name in self._now if name not in self._columns]
        if new or not self.path.exists():
            columns = self._columns + new
            rows = [*self._rows(), self._now]
            self.path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(
                self.path, csv_of([columns, *([r.get(c, "") for c in columns] for r in rows)])
            )
            self._columns = columns
        else:
            with open(self.path, "ab", opener=open_plain) as file:
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
        """The lines that are whole."""
        if not self.path.exists():
            return []
        whole = self.path.read_text().rpartition("\n")[0]
        return [row for row in csv.DictReader(io.StringIO(whole)) if row.get("step", "").isdigit()]
