from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer
from rich.table import Table
from rich.text import Text

from towerpack._core.extras import explain_missing
from towerpack.cli._ckpt_table import brief, info_text, time_text
from towerpack.cli._console import console, escape, pairs, table
from towerpack.cli._machine import size_text
from towerpack.cli._options import TAG
from towerpack.cli._run import compiled

if TYPE_CHECKING:
    import numpy as np

    from towerpack.checkpoint import Checkpoint

_WIDE: Final = 120  # columns of a terminal


def show(
    path: Annotated[str, typer.Argument(help="A checkpoint, or a run (its newest checkpoint).")],
    tag: TAG = None,
    match: Annotated[
        str, typer.Option(help="Show only tensors whose names match this regular expression.")
    ] = "",
) -> None:
    """Show the tensors of a checkpoint with statistics, and the saved state.

    All checksums are verified first.
    """
    with explain_missing("towerpack ckpt"):
        from towerpack.checkpoint import load_checkpoint
    pattern = compiled(match)
    checkpoint = load_checkpoint(path, tag=tag)
    out = console()
    out.print(_summary(checkpoint))
    for group in checkpoint.tensors:
        out.print(_tensor_table(checkpoint, group, pattern))
    states = table("name", "type", "value", title="state")
    state = checkpoint.state
    items = cast("dict[Any, Any]", state if isinstance(state, dict) else {"": state})
    for name, value in items.items():
        states.add_row(escape(str(name)), type(value).__name__, escape(brief(value, 100)))
    out.print(states)


def _summary(checkpoint: Checkpoint) -> Table:
    manifest = checkpoint.manifest
    rows = {
        "checkpoint": Text(str(checkpoint.path), "bold"),
        "step": f"{checkpoint.step:,}",
        "tag": escape(manifest.tag or ""),
        "saved": time_text(manifest.saved_at),
        "size": size_text(manifest.nbytes),
        "info": escape(info_text(manifest.info)),
        "written by": escape(", ".join(f"{n} {v}" for n, v in manifest.versions.items())),
    }
    return pairs((name, text) for name, text in rows.items() if text)


def _tensor_table(checkpoint: Checkpoint, group: str, pattern: re.Pattern[str]) -> Table:
    import numpy as np

    specs = checkpoint.tensors[group].specs
    names = [name for name in specs if pattern.search(name)]
    count = sum(int(np.prod(specs[name][0], dtype=np.int64)) for name in names)
    title = f"{group}: {len(names)} tensors, {count:,} numbers"
    title += f" (of {len(specs)} tensors)" if len(names) < len(specs) else ""
    titles = ["name", "shape", "dtype", ">size", ">mean", ">std", ">min", ">max", ">nan", ">inf"]
    lines: list[list[str]] = []
    for name in names:
        array = checkpoint.tensors[group][name]
        shape = " × ".join(str(size) for size in array.shape) or "scalar"
        row = [escape(name), shape, array.dtype.name, size_text(array.nbytes), *_statistics(array)]
        lines.append(row)
    shown = [*range(len(titles))]
    if console().width < _WIDE:  # names would be folded into a few characters
        shown = [i for i in shown if i not in (2, 3) and any(line[i] for line in lines)]
    rows = table(*(titles[i] for i in shown), title=title)
    for line in lines:
        rows.add_row(*(line[i] for i in shown))
    return rows


def _statistics(array: np.ndarray) -> list[str]:
    """Return mean, standard deviation, minimum, maximum, and numbers of NaN and inf, as text."""
    import numpy as np

    if array.size == 0 or array.dtype.kind == "c":
        return [""] * 6
    values: np.ndarray = array.astype(np.float64)
    nans, infs = int(np.isnan(values).sum()), int(np.isinf(values).sum())
    finite = values[np.isfinite(values)]
    numbers = [""] * 4
    if finite.size:
        # Squares of very large numbers overflow; the table then shows inf.
        with np.errstate(over="ignore", invalid="ignore"):
            summary = finite.mean(), finite.std(), finite.min(), finite.max()
        numbers = [f"{float(value):.4g}" for value in summary]
    return [*numbers, *(f"[bold red]{n:,}" if n else "" for n in (nans, infs))]
