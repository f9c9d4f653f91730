from __future__ import annotations

import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from towerpack._core.columns import aligned
from towerpack._core.errors import ConfigError, TowerpackError
from towerpack._core.extras import require
from towerpack.cli._console import console, table
from towerpack.cli._options import ALLOW_CODE, RECIPE, SETTINGS
from towerpack.cli._recipe import open_recipe

if TYPE_CHECKING:
    from towerpack.apps import Recipe

_SHOWN = 20


def tune(
    recipe: RECIPE,
    settings: SETTINGS = None,
    space: Annotated[
        Path | None, typer.Option(help="YAML file with a search space, replacing the recipe's.")
    ] = None,
    trials: Annotated[
        int, typer.Option(min=1, help="Number of trials, including earlier ones.")
    ] = 20,
    workers: Annotated[int, typer.Option(min=1, help="Number of simultaneous trials.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed for choosing settings.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Directory for the study (default: runs/NAME-tune).")
    ] = None,
    batch_size: Annotated[
        bool,
        typer.Option(
            "--batch-size",
            help="Find the largest batch size that fits into memory, and print the throughput of "
            "each size. All options but --allow-code are ignored.",
        ),
    ] = False,
    allow_code: ALLOW_CODE = False,
) -> None:
    """Search for the settings with the best score on validation data.

    Run the same command again to continue the search. Then run: towerpack train OUT/best.yaml
    """
    from towerpack.config import change, code_in, read_yaml

    base = open_recipe(recipe, settings, allow_code)
    if batch_size:
        _find_batch_size(base)
        return
    if space is not None:
        search_space = read_yaml(space)
        if not allow_code and code_in(base.application.config, {"search": search_space}):
            raise ConfigError(
                f"{space} names code (module:name) that is not part of towerpack.",
                fix="add --allow-code if you trust the file",
            )
        base = replace(base, config=change(base.config, search=search_space))
    folder = out or Path("runs") / f"{base.name}-tune"
    require("tensorflow", extra="apps", needed_for="Training")
    from towerpack.apps import search

    if workers > 1:
        _wait_for(workers, folder, [a for a in sys.argv[1:] if not a.startswith("--workers=")])
    done = search(base, folder, trials=trials, seed=seed)
    rows = table(*done.titles)
    for row in done.rows[:_SHOWN]:
        rows.add_row(*(f"{v:.4g}" if isinstance(v, float) else str(v) for v in row))
    console().print(rows)
    console().print(
        f"Next: towerpack train {shlex.quote(str(done.files[0]))} (the search used no test data)"
    )


def _find_batch_size(recipe: Recipe) -> None:
    require("tensorflow", extra="apps", needed_for="Training")
    from towerpack.apps import search_batch_size

    rates = search_batch_size(recipe)
    rows = [(f"{size:,}", f"{rate:,.1f}") for size, rate in rates.items()]
    print("\n".join(aligned([("batch size", "rows/s"), *rows], ">>")))
    print(f"Next: towerpack train {recipe.name} data.batch_size={max(rates)}")


def _wait_for(workers: int, folder: Path, arguments: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if "--workers" in arguments:
        index = arguments.index("--workers")
        del arguments[index : index + 2]
    running: list[subprocess.Popen[bytes]] = []
    for i in range(workers):
        with (folder / f"worker-{i}.log").open("ab") as log:
            command = [sys.executable, "-P", "-m", "towerpack", *arguments]
            running.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT))
    try:
        codes = [process.wait() for process in running]
    finally:
        for process in running:
            process.terminate()
    if any(codes):
        raise TowerpackError(
            f"{sum(map(bool, codes))} of {workers} worker processes failed.",
            fix=f"see the errors in {folder}/worker-*.log",
        )
