"""`towerpack data grid`: a picture of what a pipeline makes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from towerpack._core.errors import ConfigError
from towerpack.cli._flow import open_flow
from towerpack.cli._options import SEED, TARGET


def _component(help: str) -> Any:
    return typer.Option(metavar="INDEX|KEY", help=help)


def grid(
    target: TARGET,
    out: Annotated[Path, typer.Argument(metavar="OUT.png", help="The file to write.")],
    rows: Annotated[int, typer.Option(min=1, help="Rows, at most.")] = 4,
    cols: Annotated[int, typer.Option(min=1, help="Pictures in a row.")] = 6,
    cell: Annotated[int, typer.Option(min=16, help="Height and width of each, in pixels.")] = 192,
    image: Annotated[str, _component("Which component is the image.")] = "0",
    label: Annotated[str | None, _component("Written below it.")] = None,
    mask: Annotated[str | None, _component("A class for each pixel; colored.")] = None,
    boxes: Annotated[str | None, _component("Rows of x0, y0, x1, y1, in pixels.")] = None,
    keypoints: Annotated[str | None, _component("Rows of x, y, in pixels.")] = None,
    bgr: Annotated[bool, typer.Option("--bgr", help="Images are blue, green, red.")] = False,
    seed: SEED = 0,
) -> None:
    """Draw the first images, and labels, masks, boxes or keypoints that you name, into a PNG."""
    if out.suffix.lower() != ".png":
        raise ConfigError(
            f"{out} is not the name of a PNG file.", expected="a name that ends in .png"
        )
    from towerpack.dataflow.images import image_grid

    drawn = image_grid(
        open_flow(target),
        out,
        rows=rows,
        cols=cols,
        cell=cell,
        image=_index(image),
        label=_index(label),
        mask=_index(mask),
        boxes=_index(boxes),
        keypoints=_index(keypoints),
        rgb=not bgr,
        seed=seed or 0,
    )
    print(f"{out}: {drawn.shape[1]} x {drawn.shape[0]} pixels")


def _index(text: str | None) -> int | str | None:
    """`1` is an index, `boxes` a key."""
    return int(text) if text is not None and text.lstrip("-").isdigit() else text
