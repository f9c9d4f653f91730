from __future__ import annotations

import datetime
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from towerpack._core.errors import CheckpointError
from towerpack._core.extras import explain_missing
from towerpack.cli._ckpt_table import checkpoint_as_json, checkpoint_table
from towerpack.cli._console import console, escape, table
from towerpack.cli._options import JSON
from towerpack.cli._run import (
    directories_of,
    is_running,
    last_values,
    lives_of,
    record_of,
    stats_of,
)

if TYPE_CHECKING:
    from towerpack.training.state.ledger import Life


def show(
    run: Annotated[str, typer.Argument(metavar="DIR", help="A run directory or URL.")],
    as_json: JSON = False,
) -> None:
    """Show when a run started, how it spent its time, its last values and its checkpoints."""
    with explain_missing("towerpack runs"):
        from towerpack.checkpoint import list_checkpoints
        from towerpack.training.state.ledger import goodput_of, totals_of
    [(name, folder)] = directories_of([run]).items()
    record, lives, records = record_of(folder), lives_of(folder), stats_of(folder)
    totals, values, running = totals_of(lives), last_values(records), is_running(folder, run)
    step, epoch = (records[-1].step, records[-1].epoch) if records else (0, 0)
    try:
        checkpoints = list_checkpoints(run, checksums=False)
    except CheckpointError:  # The run has not saved yet.
        checkpoints = []
    if as_json:
        tree = {
            "run": name,
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
            "checkpoints": [checkpoint_as_json(row) for row in checkpoints],
        }
        typer.echo(json.dumps(tree))
        return
    out = console()
    out.print(_starts(lives, running))
    if lives:
        from towerpack.training.state.report import spending_text

        out.print(f"Time use (goodput {goodput_of(totals):.1%}):", style="bold")
        out.print(escape(spending_text(totals)) + "\n")
    shown = ", ".join(f"{n} {v:.4g}" for n, v in values.items() if not n.startswith("time/"))
    out.print(escape(f"Epoch {epoch}, step {step}: {shown}" if values else "No values yet."))
    out.print(checkpoint_table(checkpoints, False) if checkpoints else "No checkpoints yet.")


def _starts(lives: list[Life], running: bool) -> Table:
    starts = table(">start", "at", ">steps", ">lost", "ended")
    for number, life in enumerate(lives, 1):
        ending = life.ending or ("running" if running and number == len(lives) else "killed")
        again = "" if life.restart in (None, "0") else f" (restart {life.restart})"
        starts.add_row(
            str(number),
            f"{datetime.datetime.fromtimestamp(life.began):%Y-%m-%d %H:%M:%S}",
            f"{life.from_step:,} to {life.to_step:,}",
            f"{life.lost_steps:,}" if life.lost_steps else "",
            escape(ending + again),
        )
    return starts
