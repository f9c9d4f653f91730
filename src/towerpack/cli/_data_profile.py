from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from towerpack.cli._flow import open_flow
from towerpack.cli._options import JSON, SEED, TARGET

_WIDTH = 100


def profile(
    target: TARGET,
    seconds: Annotated[float, typer.Option(min=0.01, help="Seconds to read.")] = 5.0,
    step_ms: Annotated[
        float, typer.Option(min=0, help="Milliseconds of a training step per datapoint.")
    ] = 0.0,
    seed: SEED = 0,
    as_json: JSON = False,
) -> None:
    """Measure the stages of a pipeline. Show the bottleneck and how to remove it."""
    from towerpack.dataflow.profiling import profile as measure

    def step(datapoint: object) -> None:
        time.sleep(step_ms / 1000)

    report = measure(open_flow(target), seconds, consume=step if step_ms else None, seed=seed or 0)
    if as_json:
        typer.echo(json.dumps(asdict(report)))
    else:
        print(report.text(min(Console().width, _WIDTH)), end="")
