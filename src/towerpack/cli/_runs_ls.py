from __future__ import annotations

import datetime
from typing import Annotated

import typer

from towerpack._core.errors import ConfigError
from towerpack._core.remote_path import is_url
from towerpack.cli._console import console, escape, table
from towerpack.cli._options import MATCH
from towerpack.cli._run import (
    compiled,
    files_of,
    is_running,
    last_values,
    lives_of,
    record_of,
    stats_of,
)


def ls(
    path: Annotated[
        str, typer.Argument(metavar="DIR", help="Directory or URL with runs.")
    ] = "runs",
    match: MATCH = r"^cost$|^val/",
) -> None:
    """List the runs below a directory with their start, state and last values."""
    pattern = compiled(match)
    folder = files_of(path, names=("run.json", "stats.jsonl", "ledger.jsonl"))
    runs = sorted(p.parent for p in [*folder.glob("run.json"), *folder.glob("**/run.json")])
    if not runs:
        raise ConfigError(f"{path} contains no runs.", expected="directories with a run.json")
    rows = table("run", "began", "state", ">epoch", ">step", "last numbers")
    for run in dict.fromkeys(runs):
        records = stats_of(run)
        last = last_values(records).items()
        began = datetime.datetime.fromtimestamp(float(record_of(run)["starts"][0]["unix_time"]))
        lives = lives_of(run)
        ended = (lives[-1].ending or "killed") if lives else ""
        rows.add_row(
            escape(f"{path.rstrip('/')}/{run.relative_to(folder)}" if is_url(path) else str(run)),
            f"{began:%Y-%m-%d %H:%M}",
            escape("running" if is_running(run, path) else ended),
            f"{records[-1].epoch:,}" if records else "",
            f"{records[-1].step:,}" if records else "",
            escape(", ".join(f"{n} {v:.4g}" for n, v in last if pattern.search(n))),
        )
    console().print(rows)
