from __future__ import annotations

import random
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from towerpack._core.extras import explain_missing
from towerpack.cli._console import print_rows
from towerpack.cli._options import ALLOW_CODE
from towerpack.cli._replay import FLOW, RUN_DIRECTORY, replay_of
from towerpack.cli._user_code import model_of

_OTHERS = 50  # steps whose rows are compared

if TYPE_CHECKING:
    from towerpack.training import StepBatch


def spikes(
    run: RUN_DIRECTORY,
    number: Annotated[
        str | None, typer.Option(help="Monitored number (default: the cost of each step).")
    ] = None,
    top: Annotated[int, typer.Option(help="Number of steps to show.")] = 10,
    window: Annotated[int, typer.Option(help="Number of values to compare a value with.")] = 101,
    losses: Annotated[
        bool, typer.Option("--losses", help="Show the row with the largest cost of each step.")
    ] = False,
    flow: FLOW = None,
    allow_code: ALLOW_CODE = False,
) -> None:
    """Show the steps with unusual costs, and what the rows of their batches have in common.

    towerpack runs spikes runs/digits --losses

    towerpack runs spikes runs/train --number grad_norm --flow train.py:make_flow
    """
    with explain_missing("towerpack runs"):
        from towerpack.training.replay.spikes import spikes as spikes_of
    ranked = spikes_of(run, number=number, top=top, window=window)
    print_rows((">step", f">{number or 'cost'}", ">median", ">z"), ranked)
    if not (flow or losses or (run / "recipe.yaml").is_file()):
        print("To compare their rows with those of other steps, pass --flow FILE.py:FUNCTION.")
        return
    replay = replay_of(run, flow, allow_code)
    from towerpack.training.replay.rows import common_features, read_steps, row_costs

    steps = sorted(spike.step for spike in ranked)
    every = range(1, replay.history.last + 1)
    others = sorted({*random.Random(0).sample(every, min(_OTHERS, len(every)))} - {*steps})
    features = common_features(read_steps(replay, steps), read_steps(replay, others))
    columns = ("their rows", "", ">% of rows", f">% in {len(others)} other steps")
    rows = [(*f[:2], 100 * f.share, 100 * f.other_share) for f in features[:10]]
    print_rows(columns, rows or [("nothing in common",)])
    if losses:
        model = flow and model_of(flow.rpartition(":")[0])
        columns = (">step", "weights", ">largest", ">median", ">row", "source", ">index", "name")
        print_rows(columns, (_largest(*each) for each in row_costs(replay, model, steps)))


def _largest(batch: StepBatch, weights: str, costs: list[float]) -> Iterable[object]:
    row = costs.index(max(costs))
    cells = batch.step, weights, costs[row], sorted(costs)[len(costs) // 2], row
    if len(batch.origins) != len(costs):
        return cells
    origin = batch.origins[row]
    return *cells, origin.source, origin.index, origin.name or ""
