from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from towerpack._core.extras import explain_missing
from towerpack.cli._console import console, escape


def rewind(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    to: Annotated[int, typer.Option(help="Continue from the newest checkpoint up to this step.")],
) -> None:
    """Continue a run from an earlier checkpoint.

    Later checkpoints are renamed to abandoned-… and kept.
    """
    with explain_missing("towerpack runs"):
        from towerpack.training.replay.rewind import rewind as rewound
    step, moved = rewound(run, to)
    console().print(
        escape(f"{run} continues from step {step:,}. Abandoned checkpoints: {len(moved)}.")
    )
