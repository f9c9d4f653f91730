"""`towerpack ckpt diff`: compare weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from towerpack.cli._console import console, escape, table
from towerpack.cli._options import SOURCE_HELP
from towerpack.cli._weights import is_float, read_weights

if TYPE_CHECKING:
    import numpy as np


def diff(
    one: Annotated[str, typer.Argument(help=SOURCE_HELP)],
    other: Annotated[str, typer.Argument(help=SOURCE_HELP)],
    tolerance: Annotated[float, typer.Option(help="Ignore differences up to this.", min=0)] = 0.0,
) -> None:
    """Show in which weights two checkpoints differ; exit code 1 if they do.

    For each: the largest difference of two numbers, and the norm of all differences over the norm
    of the first one's numbers. NaN equals NaN.
    """
    first, second = read_weights(one), read_weights(other)
    rows = table("name", ">shape", ">largest difference", ">relative")
    same = 0
    for name in [*first, *(n for n in second if n not in first)]:
        row = _difference(first.get(name), second.get(name), tolerance)
        same += not row
        if row:
            rows.add_row(escape(name), *row)
    if rows.row_count:
        console().print(rows)
    console().print(f"{rows.row_count} differ, {same} are the same.", style="bold")
    if rows.row_count:
        raise typer.Exit(1)


def _difference(one: Any, other: Any, tolerance: float) -> Sequence[str]:
    """Return the cells of a row; none if the arrays are the same."""
    import numpy as np

    if one is None or other is None:
        present: Any = other if one is None else one
        return _shape(present), "only in the " + ("second" if one is None else "first"), ""
    if one.shape != other.shape or one.dtype != other.dtype:
        return f"{_shape(one)} {one.dtype.name}", f"{_shape(other)} {other.dtype.name}", ""
    if one.dtype.kind not in "fc" and not is_float(one):
        count = int((one != other).sum())
        return (_shape(one), f"{count:,} numbers", "") if count else ()
    a, b = (x.astype(np.complex128 if x.dtype.kind == "c" else np.float64) for x in (one, other))
    with np.errstate(invalid="ignore"):
        gaps = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0, abs(a - b))
    if not gaps.size or gaps.max() <= tolerance:  # NaN in one array alone is a difference.
        return ()
    norm = float(np.linalg.norm(a))
    relative = f"{float(np.linalg.norm(gaps)) / norm:.3g}" if norm else ""
    return _shape(one), f"{float(gaps.max()):.3g}", relative


def _shape(array: np.ndarray) -> str:
    return " × ".join(map(str, array.shape)) or "scalar"
