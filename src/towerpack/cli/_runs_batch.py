from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from towerpack._core.errors import ConfigError
from towerpack._core.npz import save_arrays
from towerpack.cli._console import console, escape, table
from towerpack.cli._options import ALLOW_CODE
from towerpack.cli._replay import FLOW, RUN_DIRECTORY, replay_of

if TYPE_CHECKING:
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
    rows = table(">row", "source", ">index", "name", ">epoch", ">position", "random numbers")
    for number, origin in enumerate(result.origins):
        cells = origin.source, f"{origin.index:,}", origin.name or "", str(origin.epoch)
        # Epoch and position with which a stage draws; `Origin.draws` has the whole keys.
        draws = ", ".join(f"{n.partition('(')[0]} {d[1]}:{d[2]}" for n, d in origin.draws.items())
        rows.add_row(str(number), *map(escape, (*cells, f"{origin.position:,}", draws)))
    console().print(rows)
    if out is not None:
        save_arrays(out, result.arrays)
        print(f"{out}: {', '.join(f'{n} {a.shape}' for n, a in result.arrays.items())}")
    if grid is not None:
        _draw(result, grid)


def _draw(batch: StepBatch, path: Path) -> None:
    from towerpack.dataflow.images import image_grid

    arrays = batch.arrays.values()
    images = next((a for a in arrays if a.ndim in (3, 4)), None)
    if images is None:
        raise ConfigError("No input of this step is a batch of images.", fix="pass --out instead")
    labels = next((a for a in arrays if a.shape == images.shape[:1] and a.dtype.kind in "iu"), None)
    columns = [images] if labels is None else [images, labels]
    drawn = image_grid(
        [list(row) for row in zip(*columns, strict=True)],
        path,
        rows=-(-len(images) // 8),
        cols=min(8, len(images)),
        cell=96,
        label=None if labels is None else 1,
    )
    print(f"{path}: {drawn.shape[1]} x {drawn.shape[0]} pixels")
