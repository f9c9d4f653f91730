from __future__ import annotations

import json
import shlex
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from towerpack._core.extras import explain_missing
from towerpack.cli._console import console, escape

if TYPE_CHECKING:
    from towerpack.apps import Imported

_SHOWN = 20


def import_(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            help="Folder with a folder per class of images or texts (with or without train, val "
            "and test); COCO, VOC or YOLO; images with label images; tables of texts; or the files "
            "of MNIST, Fashion-MNIST, CIFAR-10 or CIFAR-100.",
        ),
    ],
    split: Annotated[
        float,
        typer.Option(
            min=0.01, max=0.99, help="Fraction for training. The rest is split into val and test."
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
    """Check the files of a data folder, list them, and write a recipe. Copies no data.

    towerpack data import pets && towerpack train pets/recipe.yaml
    """
    with explain_missing("towerpack data import"):
        from towerpack.apps import import_data
    result = import_data(folder, out, split=split, overwrite=overwrite)
    for sentence in result.advice:
        typer.echo(sentence, err=True)
    if as_json:
        typer.echo(json.dumps(result.as_dict()))
        return
    _print(result)


def _print(result: Imported) -> None:
    show = console()
    bad = [(entry.file, entry.why) for entry in result.bad]
    if result.task == "detection":
        for file, reason in bad[:_SHOWN]:
            show.print(f"[red]broken[/] {escape(file)}: {escape(reason)}")
        bad = []
    left_out = [*bad, *result.left_out]
    for file, reason in left_out[:_SHOWN]:
        show.print(f"[yellow]left out[/] {escape(file)}: {escape(reason)}")
    if len(left_out) > _SHOWN:
        reasons = Counter(reason for _, reason in result.left_out)
        counts = ", ".join(f"{count:,} {reason}" for reason, count in reasons.items())
        more = len(left_out) - _SHOWN
        show.print(f"[yellow]left out[/] {more} more; --json lists all ({escape(counts)})")
    for files in result.identical[:_SHOWN]:
        show.print(f"[yellow]identical in two splits[/] {escape(', '.join(files))[:400]}")
    if len(result.identical) > _SHOWN:
        show.print(f"{len(result.identical) - _SHOWN} more are identical; --json lists all")
    for name, count in result.small_classes.items():
        text = f"the class {name} has {'one file' if count else 'no files'}"
        show.print(f"[yellow]too few[/] {escape(text)}")
    totals = sum(map(Counter, result.used.values()), Counter[str]())
    names = [name for counts in list(result.used.values())[:1] for name in counts if totals[name]]
    table = Table("class", *result.used, box=None)
    for name in names:
        table.add_row(escape(name), *(f"{counts[name]:,}" for counts in result.used.values()))
    show.print(table)
    counts = ", ".join(f"{count:,} {name}" for name, count in result.counts.items())
    size = " x ".join(map(str, result.data.get("size", ())))
    trained = f"; trained on {size} pixels, channels: {result.data['channels']}" if size else ""
    show.print(f"{result.task}: {len(names)} classes, {counts}{trained}")
    show.print(f"Next: towerpack train {escape(shlex.quote(str(result.recipe)))}", soft_wrap=True)
