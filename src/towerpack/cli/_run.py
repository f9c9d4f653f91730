"""Reading of a run directory: record, starts and monitored values."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from towerpack._core.errors import ConfigError
from towerpack._core.extras import explain_missing
from towerpack._core.locks import is_held
from towerpack._core.remote_path import is_url

if TYPE_CHECKING:
    from towerpack.callbacks.monitors import Record
    from towerpack.training.state.ledger import Life

Curve = tuple[list[int], list[float]]
"""Steps and values of a monitored name."""


def files_of(where: str | Path, *folders: str, names: Iterable[str] | None = None) -> Path:
    """Return the directory of a run's files. Download the files of a run behind a URL."""
    with explain_missing("A run behind a URL"):
        from towerpack.training.state.run_dir import run_files

        return run_files(where, *folders, names=names)


def directories_of(runs: Iterable[str]) -> dict[str, Path]:
    """Return the directories of runs by the names to show."""
    return {run if is_url(run) else str(Path(run)): files_of(run) for run in runs}


def record_of(run: Path) -> dict[str, Any]:
    """Read `run.json`. Raise ConfigError if the directory is not a run."""
    with explain_missing("towerpack runs"):
        from towerpack.training.state.run_dir import read_record
    record = read_record(run)
    if not record:
        raise ConfigError(
            f"{run} is not a run directory.",
            got="no run.json in it" if run.is_dir() else "no directory",
            fix="pass the run_dir of a training",
        )
    return record


def lives_of(run: Path) -> list[Life]:
    """Return the recorded starts of a run. Empty for runs of old versions."""
    from towerpack.training.state.ledger import read_ledger

    path = run / "ledger.jsonl"
    return read_ledger(path) if path.exists() else []


def is_running(run: Path, where: str) -> bool:
    """Return whether a run is running. The lock of one behind a URL is on another machine."""
    if not is_url(where):
        return is_held(run / ".lock")
    lives = lives_of(run)
    return bool(lives) and lives[-1].ending is None and time.time() - lives[-1].ended < 60


def stats_of(run: Path) -> list[Record]:
    """Read the monitored values of a run, oldest first."""
    record_of(run)
    from towerpack.callbacks.monitors import read_stats

    path = run / "stats.jsonl"
    return read_stats(path) if path.exists() else []


def last_values(records: list[Record]) -> Mapping[str, float]:
    """Return the last value of each monitored name."""
    return {name: value for record in records for name, value in record.scalars.items()}


def compiled(match: str) -> re.Pattern[str]:
    """Compile the regular expression passed as --match."""
    try:
        return re.compile(match)
    except re.error as error:
        raise ConfigError(
            f"--match {match!r} is not a regular expression: {error}.",
            fix="escape special characters in --match with a backslash",
        ) from error


def curves_of(run: Path, match: str) -> dict[str, Curve]:
    """Return the finite values of each monitored name that matches `match`."""
    pattern = compiled(match)
    curves: dict[str, Curve] = {}
    for record in stats_of(run):
        for name, value in record.scalars.items():
            if pattern.search(name) and math.isfinite(value):
                steps, values = curves.setdefault(name, ([], []))
                steps.append(record.step)
                values.append(value)
    return curves
