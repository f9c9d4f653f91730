"""`towerpack runs`: look at what trainings have come to."""

from __future__ import annotations

import datetime
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from towerpack._core.errors import CheckpointError, ConfigError
from towerpack._core.extras import explain_missing
from towerpack._core.locks import is_held
from towerpack.cli._ckpt import plain_table, row_as_json, rows_table
from towerpack.cli._console import console

if TYPE_CHECKING:
    from towerpack.callbacks.monitors import Record
    from towerpack.checkpoint import CheckpointRow
    from towerpack.training.state.ledger import Life

runs_app = typer.Typer(help="Look at runs.", no_args_is_help=True)


@runs_app.callback()
def _runs() -> None:  # pyright: ignore[reportUnusedFunction]
    """Look at runs."""


@runs_app.command()
def show(
    run: Annotated[Path, typer.Argument(metavar="DIR", help="A run directory.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Show a run: its starts, where its time went, the last values, checkpoints."""
    with explain_missing("towerpack runs"):
        from towerpack.training.state.ledger import goodput_of, totals_of
    record = record_of(run)
    lives = _lives(run)
    totals = totals_of(lives)
    step, epoch, values = _last_values(run)
    found = _checkpoints(run)
    running = is_held(run / ".lock")
    if as_json:
        tree = {
            "run": str(run),
            "seed": record.get("seed"),
            "command": record["starts"][-1].get("command"),
            "running": running,
            "lives": [asdict(life) for life in lives],
            "seconds": totals,
            "goodput": goodput_of(totals),
            "step": step,
            "epoch": epoch,
            "values": {
                name: value if abs(value) < 1e308 else repr(value) for name, value in values.items()
            },
            "checkpoints": [row_as_json(row) for row in found],
        }
        typer.echo(json.dumps(tree))
        return
    out = console()
    _print_lives(out, lives, running)
    if lives:
        from towerpack.training.state.report import spending_text

        out.print(f"Where the time went; goodput {goodput_of(totals):.1%}:", style="bold")
        out.print(escape(spending_text(totals)) + "\n")
    shown = ", ".join(f"{n} {v:.4g}" for n, v in values.items() if not n.startswith("time/"))
    out.print(escape(f"Epoch {epoch}, step {step}: {shown}" if values else "No values yet."))
    out.print(rows_table(found, False) if found else "No checkpoints yet.")


def record_of(run: Path) -> dict[str, Any]:
    """What `run.json` holds.

    Raises:
        ConfigError: It is no run directory.
    """
    with explain_missing("towerpack runs"):
        from towerpack.training.state.run_dir import read_record
    record = read_record(run)
    if not record:
        raise ConfigError(
            f"{run} is no run directory.",
            got="no run.json in it" if run.is_dir() else "no directory",
            fix="name the run_dir of a training",
        )
    return record


def state_of(run: Path) -> str:
    """State of a run: how it goes, or how it ended."""
    lives = _lives(run)
    return "running" if is_held(run / ".lock") else (lives[-1].ending or "killed") if lives else ""


def _lives(run: Path) -> list[Life]:
    from towerpack.training.state.ledger import read_ledger

    path = run / "ledger.jsonl"
    return read_ledger(path) if path.exists() else []  # older runs have none


def stats_of(run: Path) -> list[Record]:
    """Return the numbers that a run has monitored, oldest first."""
    from towerpack.callbacks.monitors import read_stats

    path = run / "stats.jsonl"
    return read_stats(path) if path.exists() else []


def _last_values(run: Path) -> tuple[int, int, dict[str, float]]:
    records = stats_of(run)
    values = {name: value for record in records for name, value in record.scalars.items()}
    return (records[-1].step, records[-1].epoch, values) if records else (0, 0, {})


def _checkpoints(run: Path) -> list[CheckpointRow]:
    from towerpack.checkpoint import list_checkpoints

    try:
        return list_checkpoints(run, checksums=False)
    except CheckpointError:
        return []  # no directory of them yet


def _print_lives(out: Console, lives: list[Life], running: bool) -> None:
    table = plain_table()
    for name in ("start", "at", "steps", "lost", "ended"):
        justify = "left" if name in ("at", "ended") else "right"
        table.add_column(name, justify=justify, no_wrap=True)
    for number, life in enumerate(lives, 1):
        ending = life.ending or ("running" if running and number == len(lives) else "killed")
        again = "" if life.restart in (None, "0") else f" (restart {life.restart})"
        table.add_row(
            str(number),
            f"{datetime.datetime.fromtimestamp(life.began):%Y-%m-%d %H:%M:%S}",
            f"{life.from_step:,} to {life.to_step:,}",
            f"{life.lost_steps:,}" if life.lost_steps else "",
            escape(ending + again),
        )
    out.print(table)
