"""Programs of runs, whose data past steps are read from again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from towerpack._core.errors import ConfigError
from towerpack._core.extras import explain_missing, require
from towerpack.cli._flow import call_flow_function
from towerpack.cli._recipe import open_run
from towerpack.cli._run import record_of

if TYPE_CHECKING:
    from towerpack.training.replay.batch import Replay

RUN_DIRECTORY = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")]
FLOW = Annotated[
    str | None,
    typer.Option(
        metavar="FILE.py:FUNCTION",
        help="Function that returns the DataFlow of the run. Not needed for a recipe's run.",
    ),
]


def replay_of(run: Path, flow: str | None, allow_code: bool) -> Replay:
    """Return the reader of a run's steps, from its recipe or from a function of its program."""
    require("tensorflow", extra="tf", needed_for="Reading steps again")
    with explain_missing("towerpack runs"):
        from towerpack.training.replay.batch import Replay
    if flow is not None:
        return Replay(run, call_flow_function(flow))
    command = record_of(run)["starts"][-1]["command"]
    if (run / "recipe.yaml").is_file():
        runner, _ = open_run(str(run), [], run, allow_code)
        return Replay(runner.train_config())
    raise ConfigError(
        f"The program that made {run} is needed, because it builds the data.",
        got=" ".join(command),
        fix="pass the function that returns its DataFlow: --flow FILE.py:FUNCTION",
    )
