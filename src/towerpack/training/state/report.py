"""Log messages at the start and at the end of a training."""

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
    LOST: "repeated after a restart",
    DOWN: "between two starts",
}
_CONSOLE_ROWS = 10
# Smallest share of the time, and smallest number of seconds, at which a callback is reported.
_SLOW_SHARE = 0.05
_SLOW_S = 1.0


def show_variables(
    variables: Mapping[str, Any], trained: Collection[str], frozen: Collection[str] = ()
) -> None:
    """Log a table of a model's variables. The console shows only the beginning of a long table."""
    table = variables_text(variables, trained, frozen)
    if len(variables) <= _CONSOLE_ROWS:
        _LOG.info("%s", table)
    else:
        _LOG.info("%s", table, extra=ONLY_FILE)
        beginning = variables_text(variables, trained, frozen, _CONSOLE_ROWS)
        _LOG.info("%s", beginning, extra=ONLY_CONSOLE)


def variables_text(
    variables: Mapping[str, Any],
    trained: Collection[str],
    frozen: Collection[str] = (),
    rows: int | None = None,
) -> str:
    """Return a table of the names, shapes and sizes of variables, or of the first `rows`."""
    shapes = {name: variable.shape.as_list() for name, variable in variables.items()}
    counts = {name: math.prod(shape) for name, shape in shapes.items()}
    total = sum(counts.values())
    fixed = total - sum(counts[name] for name in trained)
    head = f"The model has {len(counts):,} variables with {total:,} numbers"
    shown = list(counts)[:rows]
    cells = [(name, str(shapes[name]), f"{counts[name]:,}") for name in shown]
    lines = [head + (f", {fixed:,} of them not trained:" if fixed else ":")]
    for line, key in zip(aligned(cells, "<<>"), shown, strict=True):
        mark = "  frozen" if key in frozen else "  not trained"
        lines.append(line if key in trained else line + mark)
    if len(shown) < len(counts):
        lines.append(f"  ... and {len(counts) - len(shown):,} more, in log.txt")
    return "\n".join(lines)


def log_spending(totals: Mapping[str, float], lives: int) -> None:
    starts = "" if lives == 1 else f" in {lives} starts"
    _LOG.info("Time spent%s:\n%s", starts, spending_text(totals))


def spending_text(totals: Mapping[str, float]) -> str:
    """Return a table of the seconds and the share of each part of the time, if above 0 s."""
    wall = sum(totals.values())
    rows = [
        (part, MEANINGS[part], clock_text(s) if s >= 60 else f"{s:.1f} s", f"{s / wall:.1%}")
        for part, s in totals.items()
        if s > 0
    ]
    return "\n".join(aligned(rows, "<<>>"))


def log_slow_callbacks(spent: Iterable[tuple[object, float]], seconds: float) -> None:
    """Log callbacks that took a large share of `seconds`, the time since the first step."""
    slow = [(s, c) for c, s in spent if s >= max(_SLOW_S, _SLOW_SHARE * seconds)]
    slow.sort(key=lambda pair: -pair[0])
    shares = ", ".join(f"{callback!r} {s / seconds:.0%} ({clock_text(s)})" for s, callback in slow)
    if shares:
        _LOG.info("Callbacks that took much of the time since the first step: %s.", shares)


def log_ending(ending: str, *, epoch: int, max_epoch: int, step: int, run_dir: Path) -> None:
    last = f" of {max_epoch}" if epoch <= max_epoch else f", more than max_epoch={max_epoch}"
    _LOG.info("%s: epoch %d%s, step %d; %s.", ending, epoch, last, step, _saved_text(run_dir))


def _saved_text(run_dir: Path) -> str:
    rows = [row for row in list_checkpoints(run_dir, checksums=False) if row.valid]
    best = {row.info["name"]: row for row in rows if (row.tag or "").startswith("best-")}
    if best:
        texts = (f"{n} {float(row.info['value']):.4g} in {row.path}" for n, row in best.items())
        return "best " + ", best ".join(texts)
    return f"newest checkpoint in {rows[-1].path}" if rows else "nothing was saved"
