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
    ema: Annotated[
        bool, typer.Option("--ema", help="Use the moving averages of the weights (WeightEMA).")
    ] = False,
) -> None:
    """Write the weights of a checkpoint to an npz or safetensors file."""
    weights = read_weights(source, tag=tag, ema=ema)
    write_weights(output, weights)
    console().print(f"Wrote {len(weights)} tensors to {escape(str(output))}.")
