"""Ledger of a run: a log of how each start of the program spent its time.

A life lasts from one start of the program to its end. It is recorded in `ledger.jsonl`:

    {"event": "start", "time": 1700000000.0, "step": 300, "seconds": {…}, "pid": 17, …}
    {"event": "save", "time": 1700000040.0, "step": 500, "seconds": {"productive": 31.2, …}}
    {"event": "end", "time": 1700000060.0, "step": 600, "seconds": {…}, "ending": "Complete"}

`seconds` holds the seconds of each part of the life so far. Ten times per second, a line
with the event "beat" replaces the previous beat. It shows when a killed program ended.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from towerpack._core.files import count_of, json_lines, open_plain, read_regular
from towerpack._core.logs import get_logger
from towerpack.training.interrupt import Interrupted
from towerpack.training.state.clock import COMPILE, PARTS, PRODUCTIVE, Clock

LOST: Final = "lost"
DOWN: Final = "down"
ALL_PARTS: Final = (*PARTS, LOST, DOWN)
RESTART: Final = "TOWERPACK_RESTART"
"""Environment variable with the number of restarts, set by a launcher."""
_MOST_SECONDS: Final = 6e10
_BEAT_S: Final = 0.1
_LOG = get_logger(__name__)


@dataclass(frozen=True)
class Life:
    """Record of one life of a run: the time from one start of the program to its end.

    Attributes:
        began: Seconds since 1970.
        ended: Time of the last record, in seconds since 1970.
        from_step: Step from which the life continued.
        to_step: Last step of the life.
        seconds: Seconds of each part of `ALL_PARTS`. `'lost'` is the time of work that a later life
            repeated. Other parts do not include it. `'down'` is the time since the previous life.
        lost_steps: Number of steps that a later life repeated.
        ending: Description of the ending; None if the life was killed or is running.
        restart: Value of `TOWERPACK_RESTART`.
    """

    began: float
    ended: float
    from_step: int
    to_step: int
    seconds: Mapping[str, float]
    lost_steps: int
    ending: str | None
    restart: str | None
    host: str
    pid: int


def read_ledger(path: str | os.PathLike[str]) -> list[Life]:
    """Return the lives of a run, oldest first. Skip damaged lines with a warning."""
    return _lives(_records(read_regular(path), path))


def totals_of(lives: Sequence[Life]) -> dict[str, float]:
    """Return the total seconds of each part of `ALL_PARTS`. Their sum is the run's wall time."""
    return {part: math.fsum(life.seconds[part] for life in lives) for part in ALL_PARTS}


def goodput_of(totals: Mapping[str, float]) -> float:
    """Return the share of a run's wall time spent on steps that were not repeated."""
    return totals[PRODUCTIVE] / max(sum(totals.values()), 1e-9)


class Ledger:
    """Context manager that logs the current start of the program, without waiting for the disk.

    If the file cannot be written, a warning is logged. `resumed_at` is the step from which the run
    continues, or None for a new run. `ending` describes an ending without exception.
    """

    def __init__(
        self,
        path: Path,
        clock: Clock,
        *,
        step: Callable[[], int],
        resumed_at: int | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.clock, self.ending = clock, "Stopped"
        self._path, self._step, self._warned = path, step, False
        self._began = wall_clock() - sum(clock.seconds().values())
        self._resumed_at = resumed_at or 0
        self._due = clock.now()
        start = {
            **self._record("start"),
            "step": self._resumed_at,
            "host": platform.node(),
            "pid": os.getpid(),
            "restart": os.environ.get(RESTART),
        }
        written = read_regular(path) if path.exists() else b""
        self._end = written.rfind(b"\n") + 1
        self._covered = 0
        self._fd = open_plain(path, os.O_RDWR | os.O_CREAT)
        os.ftruncate(self._fd, self._end)
        self._before = _lives([*_records(written, path), start])
        self._append(start)

    def totals(self) -> dict[str, float]:
        totals = totals_of(self._before[:-1])
        totals[DOWN] += self._before[-1].seconds[DOWN]
        return totals | {part: totals[part] + s for part, s in self.clock.seconds().items()}

    @property
    def lives(self) -> int:
        return len(self._before)

    def beat(self) -> None:
        """Record the current time as a heartbeat, at most ten times per second."""
        now = self.clock.now()
        if now >= self._due:
            self._due = now + _BEAT_S
            self._write(self._record("beat"))

    def note(self, event: str, **fields: object) -> None:
        """Record an event, such as "save" if the state was passed to the checkpoint writer."""
        self._append({**self._record(event), **fields})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        ending = self.ending if kind is None else kind.__name__
        if isinstance(error, Interrupted):
            ending = str(error)
        self.note("end", ending=ending)
        os.close(self._fd)

    def _record(self, event: str) -> dict[str, Any]:
        seconds = self.clock.seconds()
        return {
            "event": event,
            "time": self._began + sum(seconds.values()),
            # The step is 0 until the checkpoint is restored.
            "step": max(self._resumed_at, self._step()),
            "seconds": seconds,
        }

    def _append(self, record: Mapping[str, Any]) -> None:
        written = self._write(record)
        self._end += written
        self._covered = 0 if written else self._covered

    def _write(self, record: Mapping[str, Any]) -> int:
        """Write a line over the last heartbeat. Return the number of bytes written."""
        line = json.dumps(record).encode().ljust(self._covered) + b"\n"
        self._covered = len(line) - 1
        try:
            if os.pwrite(self._fd, line, self._end) == len(line):
                return len(line)
            problem = "the disk is full"
        except OSError as error:
            problem = f"{type(error).__name__}: {error}"
        if not self._warned:
            _LOG.warning("%s cannot be written and is incomplete: %s.", self._path, problem)
        self._warned = True
        return 0


def _records(written: bytes, path: object) -> list[dict[str, Any]]:
    records = json_lines(written, path, _record)
    return list(itertools.dropwhile(lambda record: record["event"] != "start", records))


def _record(tree: dict[str, Any]) -> dict[str, Any]:
    tree = {
        **tree,
        "time": float(tree["time"]),
        "step": count_of(tree["step"]),
        "event": str(tree["event"]),
        "seconds": {part: float(tree["seconds"][part]) for part in PARTS},
        "pid": count_of(tree.get("pid", 0)),
    }
    if not abs(tree["time"]) + sum(map(abs, tree["seconds"].values())) < _MOST_SECONDS:
        raise ValueError("a time is beyond the year 3800")
    return tree


def _lives(records: Sequence[Mapping[str, Any]]) -> list[Life]:
    starts = [i for i, record in enumerate(records) if record["event"] == "start"]
    groups = [records[i:j] for i, j in zip(starts, [*starts[1:], len(records)], strict=False)]
    lives: list[Life] = []
    reused = math.inf  # Later lives continued from this step, so work up to it is not lost.
    for number in reversed(range(len(groups))):
        group = groups[number]
        first, last = group[0], group[-1]
        seconds = _less_lost(group, reused)
        ended = groups[number - 1][-1]["time"] if number else first["time"]
        start = first["time"] - sum(first["seconds"].values())
        seconds[DOWN] = max(0.0, start - ended) if number else 0.0
        lives.append(
            Life(
                began=start,
                ended=last["time"],
                from_step=first["step"],
                to_step=last["step"],
                seconds=seconds,
                lost_steps=int(max(0, last["step"] - max(reused, first["step"]))),
                ending=None if last.get("ending") is None else str(last["ending"]),
                restart=first.get("restart"),
                host=str(first.get("host")),
                pid=first["pid"],
            )
        )
        reused = min(reused, first["step"])
    return lives[::-1]


def _less_lost(group: Sequence[Mapping[str, Any]], reused: float) -> dict[str, float]:
    """Return the seconds of a life. Work that a later life repeated is counted as `LOST`."""
    last = group[-1]
    seconds = dict(last["seconds"])
    lost = 0.0
    if last["step"] > reused or (math.isfinite(reused) and last["event"] != "end"):
        saves = [r for r in group if r["event"] in ("start", "save") and r["step"] <= reused]
        for part in (part for part in PARTS if part != COMPILE):
            counts = saves[-1]["seconds"][part] if saves else 0.0
            lost += seconds[part] - counts
            seconds[part] = counts
    return {**seconds, LOST: lost}
