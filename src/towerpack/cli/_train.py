from __future__ import annotations

import json
import shlex
from typing import Annotated

import typer

from towerpack._core.extras import require
from towerpack._core.remote_path import is_url
from towerpack.cli._console import console, escape
from towerpack.cli._options import ALLOW_CODE, JSON, RECIPE, RUN_DIR, SETTINGS
from towerpack.cli._recipe import open_recipe


def train(
    recipe: RECIPE,
    settings: SETTINGS = None,
    run_dir: RUN_DIR = None,
    show_config: Annotated[
        bool, typer.Option("--show-config", help="Print and explain all settings, then exit.")
    ] = False,
    allow_code: ALLOW_CODE = False,
    json_: JSON = False,
) -> None:
    """Train with a recipe. Run the same command again to continue a stopped run.

    towerpack train digits train.epochs=5 batch_size=32

    towerpack train runs/digits epochs=20
    """
    opened = open_recipe(recipe, settings, allow_code)
    if show_config:
        from towerpack.config import explained

        print(explained(opened.config), end="")
        return
    require("tensorflow", extra="apps", needed_for="Training")
    from towerpack.apps import Runner

    trainer = Runner.from_recipe(opened, run_dir).train()
    where = str(run_dir) if is_url(run_dir) else str(trainer.run_dir)
    names = trainer.monitors.names()
    numbers = {n: trainer.monitors.latest(n) for n in names if n.startswith("val/")}
    if json_:
        print(json.dumps({"run_dir": where, "step": trainer.global_step, **numbers}))
        return
    out = console()
    for name, value in numbers.items():
        out.print(f"{name:<20} {value:.4g}")
    out.print(f"Next: towerpack eval {escape(shlex.quote(where))}")
