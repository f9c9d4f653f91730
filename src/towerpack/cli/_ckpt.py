"""`towerpack ckpt`: look at checkpoints."""

from __future__ import annotations

import datetime
import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich import box
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from towerpack._core.errors import ConfigError
from towerpack._core.extras import explain_missing
from towerpack.cli._console import console
from towerpack.cli._machine import size_text

if TYPE_CHECKING:
    import numpy as np

    from towerpack.checkpoint import Checkpoint, CheckpointRow

ckpt_app = typer.Typer(help="Look at checkpoints, compare and convert them.", no_args_is_help=True)


@ckpt_app.command("ls")
def list_(
    run: Annotated[Path, typer.Argument(help="A run directory, or its checkpoints directory.")],
    check: Annotated[
        bool, typer.Option("--check", help="Read every file and compare its checksum.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """List a run's checkpoints, and say which are damaged.

    Without --check, names, sizes and structure are looked at, which finds all but flipped bits.
    With it, a damaged one gives exit code 1.
    """
    with explain_missing("towerpack ckpt"):
        from towerpack.checkpoint import list_checkpoints
    rows = list_checkpoints(run, checksums=check)
    if as_json:
        for row in rows:
            typer.echo(json.dumps(row_as_json(row)))
    elif rows:
        out = console()
        out.print(rows_table(rows, check))
        out.print(_footer(rows, check))
    else:
        console().print(f"No checkpoints in {escape(str(run))} yet.")
    if check and not all(row.valid for row in rows):
        raise typer.Exit(1)


@ckpt_app.command("show")
def show(
    path: Annotated[Path, typer.Argument(help="A checkpoint, or a run for its newest valid one.")],
    tag: Annotated[str | None, typer.Option(help="Of a run: the one kept under this tag.")] = None,
    match: Annotated[str, typer.Option(help="Only tensors whose name has this expression.")] = "",
) -> None:
    """Show what a checkpoint holds: every tensor with its statistics, and the state.

    All checksums are compared first.
    """
    with explain_missing("towerpack ckpt"):
        from towerpack.checkpoint import load_checkpoint
    try:
        pattern = re.compile(match)
    except re.error as error:
        raise ConfigError(
            f"--match {match!r} is not a regular expression: {error}.",
            fix="escape what is meant literally with a backslash",
        ) from error
    checkpoint = load_checkpoint(path, tag=tag)
    out = console()
    out.print(_summary(checkpoint))
    for group in checkpoint.tensors:
        out.print(_tensor_table(checkpoint, group, pattern))
    out.print(_state_table(checkpoint.state))


def plain_table(title: str | None = None) -> Table:
    """An empty table of the look of all."""
    return Table(
        box=box.SIMPLE_HEAD,
        title=title,
        title_justify="left",
        title_style="bold",
        pad_edge=False,
        header_style="dim",
    )


def rows_table(rows: list[CheckpointRow], checked: bool) -> Table:
    """Checkpoints, one a row."""
    table = plain_table()
    table.add_column("step", justify="right", style="bold")
    table.add_column("kept as", style="cyan")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("saved", no_wrap=True)
    table.add_column("noted")
    table.add_column("state", overflow="fold")
    for row in rows:
        state = ("[green]valid" if checked else "[green]whole") if row.valid else "[red]damaged: "
        table.add_row(
            f"{row.step:,}",
            escape(row.tag or ""),
            size_text(row.nbytes),
            _when(row.saved_at),
            escape(_noted(row.info)),
            state + escape(row.problem or ""),
        )
    return table


def _footer(rows: list[CheckpointRow], checked: bool) -> Text:
    valid = [row for row in rows if row.valid]
    untagged = [row for row in valid if row.tag is None]
    damaged = len(rows) - len(valid)
    text = Text(style="dim")
    if valid:
        newest = (untagged or valid)[-1]
        text.append(f"A resume would go on from step {newest.step:,}.")
    else:
        text.append("There is nothing that could be loaded.", "red")
    if damaged:
        text.append(f" {damaged} damaged.", "red")
    if not checked:
        text.append(" Contents were not read; --check does.")
    return text


def row_as_json(row: CheckpointRow) -> dict[str, Any]:
    """Describe a checkpoint without reading its tensors."""
    return {
        "step": row.step,
        "tag": row.tag,
        "path": str(row.path),
        "nbytes": row.nbytes,
        "saved_at": row.saved_at,
        "info": dict(row.info),
        "valid": row.valid,
        "problem": row.problem,
    }


def _summary(checkpoint: Checkpoint) -> Table:
    manifest = checkpoint.manifest
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    table.add_row("checkpoint", Text(str(checkpoint.path), "bold"))
    table.add_row("step", f"{checkpoint.step:,}")
    if manifest.tag is not None:
        table.add_row("kept as", escape(manifest.tag))
    table.add_row("saved", _when(manifest.saved_at))
    table.add_row("size", size_text(manifest.nbytes))
    if manifest.info:
        table.add_row("noted", escape(_noted(manifest.info)))
    versions = ", ".join(f"{name} {version}" for name, version in manifest.versions.items())
    table.add_row("written by", escape(versions))
    return table


def _tensor_table(checkpoint: Checkpoint, group: str, pattern: re.Pattern[str]) -> Table:
    import numpy as np

    specs = checkpoint.tensors[group].specs
    names = [name for name in specs if pattern.search(name)]
    count = sum(int(np.prod(specs[name][0], dtype=np.int64)) for name in names)
    title = f"{group}: {len(names)} tensors, {count:,} numbers"
    table = plain_table(title if len(names) == len(specs) else f"{title} (of {len(specs)} tensors)")
    table.add_column("name", overflow="fold", style="cyan")
    table.add_column("shape", no_wrap=True)
    table.add_column("dtype")
    for heading in ("size", "mean", "std", "min", "max", "nan", "inf"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name in names:
        array = checkpoint.tensors[group][name]
        shape = " × ".join(str(size) for size in array.shape) or "scalar"
        row = [escape(name), shape, array.dtype.name, size_text(array.nbytes), *_statistics(array)]
        table.add_row(*row)
    return table


def _statistics(array: np.ndarray) -> list[str]:
    """Mean, standard deviation, least, greatest, nan count and inf count, as text."""
    import numpy as np

    if array.size == 0 or array.dtype.kind == "c":
        return [""] * 6
    values: np.ndarray = array.astype(np.float64)
    nans, infs = int(np.isnan(values).sum()), int(np.isinf(values).sum())
    finite = values[np.isfinite(values)]
    numbers = [""] * 4
    if finite.size:
        # A float64 near its limit overflows in the square; inf says so well enough.
        with np.errstate(over="ignore", invalid="ignore"):
            found = finite.mean(), finite.std(), finite.min(), finite.max()
        numbers = [_number(float(value)) for value in found]
    return [*numbers, *(f"[bold red]{n:,}" if n else "" for n in (nans, infs))]


def _state_table(state: Any) -> Table:
    table = plain_table("state")
    table.add_column("name", style="cyan", no_wrap=True)
    table.add_column("type", style="dim", no_wrap=True)
    table.add_column("value", overflow="fold")
    items = cast("dict[Any, Any]", state if isinstance(state, dict) else {"": state})
    for name, value in items.items():
        table.add_row(escape(str(name)), type(value).__name__, escape(_brief(value, 100)))
    return table


def _noted(info: Mapping[str, Any]) -> str:
    # Of a BestSaver: {'best': [{'name': 'val/error', 'value': 0.18}]}, one of these under its tag.
    best = info.get("best") or ([info] if {*info} == {"name", "value"} else [])
    told = {one["name"]: one["value"] for one in best} if best else info
    return ", ".join(f"{name} {_brief(value)}" for name, value in told.items())


def _brief(value: Any, limit: int = 40) -> str:
    if isinstance(value, float):
        return _number(value)
    text = value if isinstance(value, str) else repr(value)
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _number(value: float) -> str:
    return f"{value:.4g}"


def _when(saved_at: float | None) -> str:
    if saved_at is None:
        return ""
    try:
        moment = datetime.datetime.fromtimestamp(saved_at).astimezone()
    except (ValueError, OverflowError, OSError):
        return f"{saved_at:g}"
    return f"{moment:%Y-%m-%d %H:%M:%S} [dim]({_age(time.time() - saved_at)})"


def _age(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return "just now" if seconds >= 0 else "in the future"
