"""Numbers for spreadsheets: a line for each epoch."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable
from pathlib import Path

from towerpack._core.files import append_whole, csv_of, replace_file
from towerpack.callbacks.monitors._base import Monitor, Scalar


class CSVMonitor(Monitor):
    """Writes each epoch's newest numbers as a line of a CSV file, after its step and epoch.

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
        """Note where we are."""
        self._now |= {"step": str(step), "epoch": str(epoch)}

    def put_scalar(self, name: str, value: float, step: int) -> None:
        """Keep the newest value."""
        self._now[name] = repr(value)

    def end_epoch(self) -> None:
        """Write the epoch's line."""
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
            with open(self.path, "ab") as file:
                line = csv_of([[self._now.get(c, "") for c in self._columns]])
                append_whole(file.fileno(), line)
        self._now = {}

    def resume(self, step: int) -> Iterable[Scalar]:
        """Drop lines of later steps."""
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
