"""`towerpack demo`: a working application in one command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from towerpack.cli._console import console


def demo(
    run_dir: Annotated[
        Path, typer.Option(help="Everything of the run goes here; again: it is continued.")
    ] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(help="Of the whole run.")] = 0,
) -> None:
    """Train LeNet on handwritten digits, evaluate, predict, draw."""
    # TensorFlow is loaded here and not with the command line.
    from towerpack._core.extras import require

    require("tensorflow", extra="tf", needed_for="The demonstration")
    require("sklearn", extra="demo", needed_for="The demonstration")
    require("matplotlib", extra="demo", needed_for="The demonstration")
    from towerpack.apps import digits

    result = digits.run(run_dir, seed=seed)
    out = console()
    if result.was_complete:
        out.print("This run was complete already; delete its directory to start afresh.")
    right = result.num_test - result.num_wrong
    out.print(
        f"Test accuracy [bold]{100 * result.accuracy:.2f} %[/] "
        f"({right} of {result.num_test} digits), predicted from the checkpoint of step "
        f"{result.step}."
    )
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for what, where in (
        ("picture", result.picture),
        ("checkpoints", result.run_dir / "checkpoints"),
        ("numbers", result.run_dir / "stats.jsonl"),
        ("log", result.run_dir / "log.txt"),
        ("live control", f"{result.run_dir / 'hyper.yaml'} (write into it: learning_rate: 3e-4)"),
        ("command, seed", result.run_dir / "run.json"),
    ):
        table.add_row(what, str(where))
    out.print(table)
    out.print(f"See them: towerpack ckpt ls {result.run_dir}")
