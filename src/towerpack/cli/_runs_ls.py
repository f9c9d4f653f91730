from __future__ import annotations

import datetime
from typing import Annotated, Final

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

_TEXTS: Final = "run", "state", "began"


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
    rows: list[dict[str, str]] = []
    numbers: dict[str, None] = {}
    for run in dict.fromkeys(runs):
        records = stats_of(run)
        last = {n: f"{v:.4g}" for n, v in last_values(records).items() if pattern.search(n)}
        numbers.update(dict.fromkeys(last))
        began = datetime.datetime.fromtimestamp(float(record_of(run)["starts"][0]["unix_time"]))
        lives = lives_of(run)
        ended = (lives[-1].ending or "killed") if lives else ""
        rows.append(
            {
                "run": f"{path.rstrip('/')}/{run.relative_to(folder)}"
                if is_url(path)
                else str(run),
                "began": f"{began:%Y-%m-%d %H:%M}",
                "state": "running" if is_running(run, path) else ended,
                "epoch": f"{records[-1].epoch:,}" if records else "",
                "step": f"{records[-1].step:,}" if records else "",
            }
            | last
        )
    _print(rows, ["run", "state", "step", "epoch", *numbers, "began"])


def _print(rows: list[dict[str, str]], columns: list[str]) -> None:
    """Print a table with the first columns that the terminal has room for."""
    terminal, count = console(), len(columns)
    unlimited = terminal.options.update(width=10_000)
    while True:
        shown = columns[:count]
        listing = table(*(name if name in _TEXTS else f">{name}" for name in shown))
        for row in rows:
            listing.add_row(*(escape(row.get(name, "")) for name in shown))
        if count == 2 or terminal.measure(listing, options=unlimited).maximum <= terminal.width:
            break
        count -= 1
    terminal.print(listing)
    if left_out := ", ".join(columns[count:]):
        text = f"No room for: {escape(left_out)}. Choose numbers with --match."
        terminal.print(text, style="dim")
