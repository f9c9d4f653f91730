from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from towerpack._core.extras import explain_missing
from towerpack._core.remote_path import is_url
from towerpack.cli._ckpt_table import checkpoint_as_json, checkpoint_table
from towerpack.cli._console import console, escape
from towerpack.cli._options import JSON_LINES

if TYPE_CHECKING:
    from towerpack.checkpoint import CheckpointRow


def ls(
    run: Annotated[str, typer.Argument(help="A run directory, its checkpoints, or a URL.")],
    check: Annotated[
        bool, typer.Option("--check", help="Read every file and compare its checksum.")
    ] = False,
    as_json: JSON_LINES = False,
) -> None:
    """List a run's checkpoints, and mark damaged ones.

    Without --check, only names, sizes and structure are checked, so flipped bits are not found.
    With --check, the exit code is 1 if a checkpoint is damaged.
    """
    with explain_missing("towerpack ckpt"):
        from towerpack.checkpoint import list_abandoned, list_checkpoints
    rows = list_checkpoints(run, checksums=check)
    if as_json:
        for row in rows:
            typer.echo(json.dumps(checkpoint_as_json(row)))
    elif rows:
        out = console()
        out.print(checkpoint_table(rows, check))
        out.print(_footer(rows, check))
    else:
        console().print(f"No checkpoints in {escape(run)} yet.")
    abandoned = [] if is_url(run) else [path.name for path in list_abandoned(run)]
    if abandoned and not as_json:
        console().print(f"Abandoned, never loaded: {escape(', '.join(abandoned))}.", style="dim")
    if check and not all(row.valid for row in rows):
        raise typer.Exit(1)


def _footer(rows: list[CheckpointRow], checked: bool) -> Text:
    valid = [row for row in rows if row.valid]
    text = Text(style="dim")
    if valid:
        newest = ([row for row in valid if row.tag is None] or valid)[-1]
        text.append(f"A resumed run continues from step {newest.step:,}.")
    else:
        text.append("No checkpoint can be loaded.", "red")
    if len(valid) < len(rows):
        text.append(f" {len(rows) - len(valid)} damaged.", "red")
    if not checked:
        text.append(" Pass --check to verify the checksums too.")
    return text
