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
    out: Annotated[Path, typer.Argument(metavar="OUT.png", help="File to write.")],
    rows: Annotated[int, typer.Option(min=1, help="Largest number of rows.")] = 4,
    cols: Annotated[int, typer.Option(min=1, help="Number of images in a row.")] = 6,
    cell: Annotated[int, typer.Option(min=16, help="Height and width of a cell in pixels.")] = 192,
    image: Annotated[str, _component("Component with the image.")] = "0",
    label: Annotated[str | None, _component("Component to write below the image.")] = None,
    mask: Annotated[str | None, _component("Component with a class for each pixel.")] = None,
    boxes: Annotated[str | None, _component("Component with rows x0, y0, x1, y1.")] = None,
    keypoints: Annotated[str | None, _component("Component with rows x, y.")] = None,
    bgr: Annotated[
        bool, typer.Option("--bgr", help="Read channels in the order blue, green, red.")
    ] = False,
    seed: SEED = 0,
) -> None:
    """Draw the first images to a PNG file, with labels, masks, boxes or keypoints."""
    if out.suffix.lower() != ".png":
        raise ConfigError(f"The name of the output file must end in .png, got {out}.")
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
    """Convert digits to an integer index. Return keys such as `boxes` unchanged."""
    return int(text) if text is not None and text.lstrip("-").isdigit() else text
