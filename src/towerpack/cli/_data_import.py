"""`towerpack data import`: a folder of data becomes a recipe to train on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from towerpack._core.extras import explain_missing
from towerpack.cli._console import console

if TYPE_CHECKING:
    from towerpack.apps import Imported

_SHOWN = 20


def import_(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            help="FOLDER/CLASS/*.jpg, or FOLDER/train/CLASS/*.jpg with val and test beside it; or "
            "the files of MNIST, Fashion-MNIST, CIFAR-10 or CIFAR-100.",
        ),
    ],
    split: Annotated[
        float,
        typer.Option(
            min=0.01, max=0.99, help="Share to train on; half of the rest validates, half tests."
        ),
    ] = 0.8,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder for the lists and the recipe.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the files of an earlier import.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check the files of a folder, list them and write a recipe. Copies no data.

    towerpack data import pets && towerpack train pets/recipe.yaml
    """
    with explain_missing("towerpack data import"):
        from towerpack.apps import import_data
    result = import_data(folder, out, split=split, overwrite=overwrite)
    for sentence in result.advice:
        typer.echo(sentence, err=True)
    if as_json:
        bad = [{"file": one.file, "why": one.why} for one in result.bad]
        report = {"recipe": str(result.recipe), "pictures": result.pictures, "bad": bad}
        typer.echo(json.dumps(report))
        return
    _print(result)


def _print(result: Imported) -> None:
    show, data = console(), result.data
    for one in result.bad[:_SHOWN]:
        show.print(f"[yellow]left out[/] {escape(one.file)}: {escape(one.why)}")
    if len(result.bad) > _SHOWN:
        show.print(f"[yellow]left out[/] {len(result.bad) - _SHOWN} more; --json lists all")
    counts = ", ".join(f"{count:,} {name}" for name, count in result.pictures.items())
    size = " x ".join(map(str, data["size"]))
    names = data.get("class_names")
    classes = f"{len(names)} classes, " if names else ""
    show.print(f"{classes}{counts}; trained on {size} pixels, channels: {data['channels']}")
    show.print(f"Next: towerpack train {escape(str(result.recipe))}", soft_wrap=True)
