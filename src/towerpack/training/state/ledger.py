r"""The ledger of a run: where the time of all its lives went. A life is one start of the program.

`ledger.jsonl` is appended to when a life begins, saves and ends:

    {"event": "start", "time": 1700000000.0, "step": 300, "seconds": {…}, "pid": 17, …}
    {"event": "save", "time": 1700000040.0, "step": 500, "seconds": {"productive": 31.2, …}}
    {"event": "end", "time": 1700000060.0, "step": 600, "seconds": {…}, "ending": "Complete"}

`seconds` are those of the life so far, part by part; their sum is `time` less that of the start.
Ten times a second the last line is a sign of life (`"beat"`), which the next one overwrites: what
is known of a life that was killed ends there.
"""

from __future__ import annotations

import json
import math
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, cast

from towerpack._core.files import open_plain
from towerpack._core.logs import get_logger
from towerpack.training.interrupt import Interrupted
from towerpack.training.state.clock import COMPILE, PARTS, PRODUCTIVE, Clock

LOST: Final = "lost"
DOWN: Final = "down"
ALL_PARTS: Final = (*PARTS, LOST, DOWN)
RESTART: Final = "TOWERPACK_RESTART"
"""Environment variable: the how manieth restart by a launcher this start is."""
_MOST_SECONDS: Final = 6e10
_BEAT_S: Final = 0.1
_LOG = get_logger(__name__)


@dataclass(frozen=True)
class Life:
    """One start of the program, as far as the ledger knows it.

    Attributes:
        began: Seconds since 1970.
        ended: Seconds since 1970; the last sign of life.
        from_step: The step that it went on from.
        to_step: The step that it came to.
        seconds: Of each part of `ALL_PARTS`: `'lost'` is what a later life had to do again, and has
            been taken from the others; `'down'` is the time between the life before and this one.
        lost_steps: Steps that a later life had to do again.
        ending: How it ended; None if it was killed, or goes on.
        restart: What the launcher has set `TOWERPACK_RESTART` to.
        host: Where it ran.
        pid: Its process.
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
    """The lives of a run, oldest first; damaged lines are left out with a warning."""
    return _lives(_records(Path(path).read_bytes(), path))


def totals_of(lives: Sequence[Life]) -> dict[str, float]:
    """Seconds of each part of `ALL_PARTS`; their sum is the wall time of the run."""
    return {part: math.fsum(life.seconds[part] for life in lives) for part in ALL_PARTS}


def goodput_of(totals: Mapping[str, float]) -> float:
    """The share of a run's wall time in which it did steps that count."""
    return totals[PRODUCTIVE] / max(sum(totals.values()), 1e-9)


class Ledger:
    """Write the ledger of this life. Use as a context manager.

    It never waits for the disk, and one that cannot be written to is told once: it is no reason to
    end a training.

    Args:
        path: The file; made if absent.
        clock: Of this life.
        step: Gives the global step.
        resumed_at: The step that this life goes on from; None if it starts from nothing.
        wall_clock: Seconds since 1970.

    Attributes:
        clock: See above.
        ending: How this life ends, if no exception ends it.
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
        self.clock = clock
        self.ending = "Stopped"
        self._path = path
        self._step = step
        self._told = False
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
        written = path.read_bytes() if path.exists() else b""
        self._end = written.rfind(b"\n") + 1
        self._covered = 0
        self._fd = open_plain(path, os.O_RDWR | os.O_CREAT)
        os.ftruncate(self._fd, self._end)
        self._before = _lives([*_records(written, path), start])
        self._append(start)

    def totals(self) -> dict[str, float]:
        """Seconds of each part of `ALL_PARTS`, over all lives, until now."""
        earlier = totals_of([*self._before[:-1]])
        down = self._before[-1].seconds[DOWN]
        return {
            **_sum(earlier, self.clock.seconds()),
            LOST: earlier[LOST],
            DOWN: earlier[DOWN] + down,
        }

    @property
    def lives(self) -> int:
        return len(self._before)

    def beat(self) -> None:
        """Leave a sign of life, at most ten times a second."""
        now = self.clock.now()
        if now >= self._due:
            self._due = now + _BEAT_S
            self._write(self._record("beat"))

    def saved(self) -> None:
        """The state of this moment is on its way into a checkpoint."""
        self._append(self._record("save"))

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
        self._append({**self._record("end"), "ending": ending})
        os.close(self._fd)

    def _record(self, event: str) -> dict[str, Any]:
        seconds = self.clock.seconds()
        return {
            "event": event,
            "time": self._began + sum(seconds.values()),
            # Before it is restored, a run stands at 0.
            "step": max(self._resumed_at, self._step()),
            "seconds": seconds,
        }

    def _append(self, record: Mapping[str, Any]) -> None:
        written = self._write(record)
        self._end += written
        self._covered = 0 if written else self._covered

    def _write(self, record: Mapping[str, Any]) -> int:
        """Put a line where the last lasting one ends, over what is there; gives its length."""
        line = json.dumps(record).encode().ljust(self._covered) + b"\n"
        self._covered = len(line) - 1
        try:
            if os.pwrite(self._fd, line, self._end) == len(line):
                return len(line)
            problem = "the disk is full"
        except OSError as error:
            problem = f"{type(error).__name__}: {error}"
        if not self._told:
            _LOG.warning("%s is incomplete from here on: %s.", self._path, problem)
        self._told = True
        return 0


def _sum(a: Mapping[str, float], b: Mapping[str, float]) -> dict[str, float]:
    return {name: a.get(name, 0.0) + value for name, value in b.items()}


def _records(written: bytes, path: object) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for number, line in enumerate(written[: written.rfind(b"\n") + 1].splitlines(), 1):
        try:
            tree = cast("dict[str, Any]", json.loads(line))
            tree = {
                **tree,
                "time": float(tree["time"]),
                "step": int(tree["step"]),
                "seconds": {part: float(tree["seconds"][part]) for part in PARTS},
                "pid": int(tree.get("pid", 0)),
            }
            if not abs(tree["time"]) + sum(map(abs, tree["seconds"].values())) < _MOST_SECONDS:
                raise ValueError("a time is beyond the year 3800")
            if tree["event"] == "start" or found:
                found.append(tree)
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            _LOG.warning("%s, line %d is left out: %r.", path, number, error)
    return found


def _lives(records: Sequence[Mapping[str, Any]]) -> list[Life]:
    starts = [i for i, record in enumerate(records) if record["event"] == "start"]
    groups = [records[i:j] for i, j in zip(starts, [*starts[1:], len(records)], strict=False)]
    lives: list[Life] = []
    kept = math.inf  # What has been done up to this step counts, as later lives went on from there.
    for number in reversed(range(len(groups))):
        group = groups[number]
        first, last = group[0], group[-1]
        seconds = _less_lost(group, kept)
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
                lost_steps=int(max(0, last["step"] - max(kept, first["step"]))),
                ending=last.get("ending"),
                restart=first.get("restart"),
                host=str(first.get("host")),
                pid=first["pid"],
            )
        )
        kept = min(kept, first["step"])
    return lives[::-1]


def _less_lost(group: Sequence[Mapping[str, Any]], kept: float) -> dict[str, float]:
    """Seconds of a life; what it did after the save that the next went on from is lost."""
    last = group[-1]
    seconds = dict(last["seconds"])
    lost = 0.0
    if last["step"] > kept or (math.isfinite(kept) and last["event"] != "end"):
        saves = [r for r in group if r["event"] in ("start", "save") and r["step"] <= kept]
        for part in (part for part in PARTS if part != COMPILE):
            counts = saves[-1]["seconds"][part] if saves else 0.0
            lost += seconds[part] - counts
            seconds[part] = counts
    return {**seconds, LOST: lost}
