"""`towerpack ckpt convert`: write weights in another format."""

from __future__ import annotations

from typing import Annotated

import typer

from towerpack.cli._console import console, escape
from towerpack.cli._options import OUTPUT, SOURCE_HELP, TAG
from towerpack.cli._weights import read_weights, write_weights


def convert(
    source: Annotated[str, typer.Argument(help=SOURCE_HELP)],
    output: OUTPUT,
    tag: TAG = None,
    ema: Annotated[bool, typer.Option("--ema", help="Take a run's averages of WeightEMA.")] = False,
) -> None:
    """Write weights into one file, by name: npz or safetensors."""
    weights = read_weights(source, tag=tag, ema=ema)
    write_weights(output, weights)
    console().print(f"{len(weights)} tensors are in {escape(str(output))}.")
