"""What is told at the start and at the end of a training."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from towerpack._core.logs import ONLY_CONSOLE, ONLY_FILE, get_logger
from towerpack.checkpoint import list_checkpoints

_LOG = get_logger(__name__)

_CONSOLE_ROWS = 30


def show_variables(
    variables: Mapping[str, Any], trained: Collection[str], frozen: Collection[str] = ()
) -> None:
    """Log a table of a model's variables; all of a long one goes to the run's log alone.

    Args:
        variables: By name.
        trained: Names of those that are trained.
        frozen: Names of those that would be, but for the configuration.
    """
    whole = variables_text(variables, trained, frozen)
    if len(variables) <= _CONSOLE_ROWS:
        _LOG.info("%s", whole)
    else:
        _LOG.info("%s", whole, extra=ONLY_FILE)
        _LOG.info(
            "%s", variables_text(variables, trained, frozen, _CONSOLE_ROWS), extra=ONLY_CONSOLE
        )


def variables_text(
    variables: Mapping[str, Any],
    trained: Collection[str],
    frozen: Collection[str] = (),
    rows: int | None = None,
) -> str:
    """Name, shape and count of the first variables, or of all; what is not trained is marked."""
    shapes = {name: variable.shape.as_list() for name, variable in variables.items()}
    counts = {name: math.prod(shape) for name, shape in shapes.items()}
    total = sum(counts.values())
    fixed = total - sum(counts[name] for name in trained)
    head = f"The model has {len(counts):,} variables with {total:,} numbers"
    shown = list(counts)[:rows]
    cells = [(name, str(shapes[name]), f"{counts[name]:,}") for name in shown]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [head + (f", {fixed:,} of them not trained:" if fixed else ":")]
    for (name, shape, count), key in zip(cells, shown, strict=True):
        line = f"  {name:<{widths[0]}}  {shape:<{widths[1]}}  {count:>{widths[2]}}"
        lines.append(
            line if key in trained else line + ("  frozen" if key in frozen else "  not trained")
        )
    if len(shown) < len(counts):
        lines.append(f"  ... and {len(counts) - len(shown):,} more, in log.txt")
    return "\n".join(lines)


def say_ending(how: str, *, epoch: int, max_epoch: int, step: int, run_dir: Path) -> None:
    """Log how a training has ended, and where what it saved is."""
    saved = _saved_text(run_dir)
    _LOG.info("%s: epoch %d of %d, step %d; %s.", how, epoch, max_epoch, step, saved)


def _saved_text(run_dir: Path) -> str:
    """Where the best checkpoints of a run are, or else the newest."""
    rows = [row for row in list_checkpoints(run_dir) if row.valid]
    best = {row.info["name"]: row for row in rows if (row.tag or "").startswith("best-")}
    if best:
        found = [
            f"{name} {float(row.info['value']):.4g} in {row.path}" for name, row in best.items()
        ]
        return "best " + ", best ".join(found)
    return f"newest checkpoint in {rows[-1].path}" if rows else "nothing was saved"
