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
    first: Annotated[str, typer.Argument(help=SOURCE_HELP)],
    second: Annotated[str, typer.Argument(help=SOURCE_HELP)],
    tolerance: Annotated[
        float, typer.Option(help="Difference up to which numbers count as equal.", min=0)
    ] = 0.0,
) -> None:
    """Show which weights of two checkpoints differ. The exit code is 1 if any weights differ.

    Each row shows the largest difference of two numbers, and the norm of all differences relative
    to the norm of the first array. NaN equals NaN.
    """
    left, right = read_weights(first), read_weights(second)
    rows = table("name", ">shape", ">largest difference", ">relative")
    same = 0
    for name in [*left, *(n for n in right if n not in left)]:
        row = _difference(left.get(name), right.get(name), tolerance)
        same += not row
        if row:
            rows.add_row(escape(name), *row)
    if rows.row_count:
        console().print(rows)
    console().print(f"{rows.row_count} differ, {same} are the same.", style="bold")
    if rows.row_count:
        raise typer.Exit(1)


def _difference(left: Any, right: Any, tolerance: float) -> Sequence[str]:
    """Return the cells of a row for the difference of two arrays; no cells if they are equal."""
    import numpy as np

    if left is None or right is None:
        present: Any = right if left is None else left
        return _shape(present), "only in the " + ("second" if left is None else "first"), ""
    if left.shape != right.shape or left.dtype != right.dtype:
        return f"{_shape(left)} {left.dtype.name}", f"{_shape(right)} {right.dtype.name}", ""
    if left.dtype.kind not in "fc" and not is_float(left):
        count = int((left != right).sum())
        return (_shape(left), f"{count:,} numbers", "") if count else ()
    a, b = (x.astype(np.complex128 if x.dtype.kind == "c" else np.float64) for x in (left, right))
    with np.errstate(invalid="ignore"):
        gaps = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0, abs(a - b))
    if not gaps.size or gaps.max() <= tolerance:  # False for NaN in one array only
        return ()
    norm = float(np.linalg.norm(a))
    relative = f"{float(np.linalg.norm(gaps)) / norm:.3g}" if norm else ""
    return _shape(left), f"{float(gaps.max()):.3g}", relative


def _shape(array: np.ndarray) -> str:
    return " × ".join(map(str, array.shape)) or "scalar"
