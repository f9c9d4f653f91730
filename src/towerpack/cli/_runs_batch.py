from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from towerpack._core.errors import ConfigError
from towerpack._core.npz import save_arrays
from towerpack.cli._console import print_rows
from towerpack.cli._options import ALLOW_CODE
from towerpack.cli._replay import FLOW, RUN_DIRECTORY, replay_of

if TYPE_CHECKING:
    from towerpack.dataflow import Origin
    from towerpack.training import StepBatch


def batch(
    run: RUN_DIRECTORY,
    step: Annotated[int, typer.Option(help="Step, from 1.")],
    replica: Annotated[int, typer.Option(help="Replica, counted over all workers.")] = 0,
    flow: FLOW = None,
    out: Annotated[Path | None, typer.Option(help="Write the arrays to this .npz file.")] = None,
    grid: Annotated[Path | None, typer.Option(help="Draw the images to this .png file.")] = None,
    allow_code: ALLOW_CODE = False,
) -> None:
    """Show which rows of the data a step consumed, and read them again.

    towerpack runs batch runs/digits --step 1234 --grid step.png

    towerpack runs batch runs/train --step 1234 --flow train.py:make_flow --out rows.npz
    """
    result = replay_of(run, flow, allow_code).batch(step, replica)
    columns = (">row", "source", ">index", "name", ">epoch", ">position", "random numbers")
    print_rows(columns, (_cells(*pair) for pair in enumerate(result.origins)))
    if out is not None:
        save_arrays(out, result.arrays)
        print(f"{out}: {', '.join(f'{n} {a.shape}' for n, a in result.arrays.items())}")
    if grid is not None:
        _draw(result, grid)


def _cells(row: int, origin: Origin) -> Iterable[object]:
    # Epoch and position with which a stage draws; `Origin.draws` has the whole keys.
    draws = ", ".join(f"{n.partition('(')[0]} {d[1]}:{d[2]}" for n, d in origin.draws.items())
    place = origin.source, origin.index, origin.name or "", origin.epoch, origin.position
    return row, *place, draws


def _draw(batch: StepBatch, path: Path) -> None:
    from towerpack.dataflow.images import image_grid

    images = next((a for a in batch.arrays.values() if a.ndim in (3, 4)), None)
    if images is None:
        raise ConfigError("No input of this step is a batch of images.", fix="pass --out instead")
    labels = [a for a in batch.arrays.values() if a.ndim == 1 and a.dtype.kind in "iu"][:1]
    rows = [list(row) for row in zip(images, *labels, strict=True)]
    cols = min(8, len(rows))
    label = 1 if labels else None
    image_grid(rows, path, rows=-(-len(rows) // cols), cols=cols, cell=96, label=label)
    print(path)
