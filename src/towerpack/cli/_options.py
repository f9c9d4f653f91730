"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from towerpack._core.extras import explain_missing


def recipe_completion(incomplete: str) -> list[str]:
    """Return the names of recipes that start with a prefix, for shell completion."""
    with explain_missing("Applications"):
        from towerpack.apps import recipe_names
    return [name for name in recipe_names() if name.startswith(incomplete)]


RECIPE = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE_OR_RUN",
        help="Name of a recipe (see `towerpack recipes`), a .yaml file, or a run directory.",
        autocompletion=recipe_completion,
    ),
]
RUN = Annotated[
    str,
    typer.Argument(metavar="RUN", help="A run directory, or the recipe whose run is in runs/NAME."),
]
SETTINGS = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Settings (see `--show-config`)."),
]
RUN_DIR = Annotated[
    str | None,
    typer.Option(
        "--run-dir", "-o", help="Directory or URL for the run's files (default: runs/NAME)."
    ),
]
ALLOW_CODE = Annotated[
    bool,
    typer.Option(
        "--allow-code",
        help="Allow a recipe or run to execute code that it names as module:name.",
    ),
]
JSON = Annotated[bool, typer.Option("--json", help="Print the results as JSON.")]
JSON_LINES = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]
MATCH = Annotated[str, typer.Option(help="Show only numbers whose name matches this expression.")]
RUNS = Annotated[list[str], typer.Argument(metavar="DIR...", help="Run directories or URLs.")]
TARGET = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="File or folder of data; or a function that returns a DataFlow, as "
        "module:function or file.py:function.",
    ),
]
SEED = Annotated[int | None, typer.Option(help="Seed of everything random in the pipeline.")]
SOURCE_HELP = (
    "A run (its newest checkpoint), a checkpoint, a file of weights, or a packaged network."
)
TAG = Annotated[str | None, typer.Option(help="Tag of a checkpoint, such as best-val/error.")]
OUTPUT = Annotated[
    Path, typer.Option("--output", "-o", help="New file to write, .npz or .safetensors.")
]
