from __future__ import annotations

import json
from typing import Annotated

import typer

from towerpack._core.errors import ConfigError
from towerpack.cli._console import console
from towerpack.cli._options import ALLOW_CODE, JSON, RUN, RUN_DIR, SETTINGS
from towerpack.cli._recipe import open_run


def eval_(
    run: RUN,
    settings: SETTINGS = None,
    split: Annotated[str, typer.Option(help="Split to evaluate: val or test.")] = "test",
    run_dir: RUN_DIR = None,
    allow_code: ALLOW_CODE = False,
    json_: JSON = False,
) -> None:
    """Evaluate the best checkpoint of a run: metrics, metrics per class, and plots."""
    if split not in ("val", "test"):
        raise ConfigError(f"--split must be val or test, got {split}.")
    runner, _ = open_run(run, settings, run_dir, allow_code)
    done = runner.evaluate(split)
    if json_:
        facts = {name: getattr(done, name) for name in ("step", "count", "trained_on")}
        files = [str(file) for file in done.files]
        print(json.dumps({"split": split, **facts, **done.numbers, "files": files}))
        return
    out = console()
    out.print(f"{split}: {done.count} datapoints, checkpoint of step {done.step}")
    for name, value in done.numbers.items():
        out.print(f"{name:<20} {value:.4f}")
    for line in ("", *done.lines, "", *(str(file) for file in done.files)):
        out.print(line, markup=False)
