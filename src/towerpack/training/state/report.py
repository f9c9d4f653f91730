"""What is told at the start and at the end of a training."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from towerpack._core.columns import aligned
from towerpack._core.logs import ONLY_CONSOLE, ONLY_FILE, get_logger
from towerpack._display.meter import clock_text
from towerpack.checkpoint import list_checkpoints
from towerpack.training.state.clock import CALLBACKS, COMPILE, DATA_WAIT, PRODUCTIVE, SAVE
from towerpack.training.state.ledger import DOWN, LOST

_LOG = get_logger(__name__)

MEANINGS = {
    PRODUCTIVE: "steps",
    COMPILE: "from the start to the first step",
    DATA_WAIT: "waiting for data",
    SAVE: "waiting for checkpoints",
    CALLBACKS: "evaluation, other callbacks, the loop",
    LOST: "done, and done again after a restart",
    DOWN: "between two starts",
}
_CONSOLE_ROWS = 30
# What is less is not told of a callback.
_SLOW_SHARE = 0.05
_SLOW_S = 1.0


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
    lines = [head + (f", {fixed:,} of them not trained:" if fixed else ":")]
    for line, key in zip(aligned(cells, "<<>"), shown, strict=True):
        lines.append(
            line if key in trained else line + ("  frozen" if key in frozen else "  not trained")
        )
    if len(shown) < len(counts):
        lines.append(f"  ... and {len(counts) - len(shown):,} more, in log.txt")
    return "\n".join(lines)


def say_spending(totals: Mapping[str, float], lives: int) -> None:
    """Log where the time of a run went.

    Args:
        totals: Seconds of each part.
        lives: How many starts it took.
    """
    starts = "" if lives == 1 else f" of {lives} starts"
    _LOG.info("Where the time%s went:\n%s", starts, spending_text(totals))


def spending_text(totals: Mapping[str, float]) -> str:
    """Parts, what they are, seconds and shares; those that took nothing are left out."""
    wall = sum(totals.values())
    rows = [
        (part, MEANINGS[part], clock_text(s) if s >= 60 else f"{s:.1f} s", f"{s / wall:.1%}")
        for part, s in totals.items()
        if s > 0
    ]
    return "\n".join(aligned(rows, "<<>>"))


def say_slow(spent: Iterable[tuple[object, float]], seconds: float) -> None:
    """Log the callbacks that took a share of the time, if there are any.

    Args:
        spent: Callbacks, and the seconds that each took.
        seconds: From the first step on.
    """
    slow = [(s, c) for c, s in spent if s >= max(_SLOW_S, _SLOW_SHARE * seconds)]
    slow.sort(key=lambda pair: -pair[0])
    told = ", ".join(f"{callback!r} {s / seconds:.0%} ({clock_text(s)})" for s, callback in slow)
    if told:
        _LOG.info("Callbacks that took much of the time since the first step: %s.", told)


def say_ending(how: str, *, epoch: int, max_epoch: int, step: int, run_dir: Path) -> None:
    """Log how a training has ended, and where what it saved is."""
    saved = _saved_text(run_dir)
    of = f" of {max_epoch}" if epoch <= max_epoch else f", more than max_epoch={max_epoch}"
    _LOG.info("%s: epoch %d%s, step %d; %s.", how, epoch, of, step, saved)


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
