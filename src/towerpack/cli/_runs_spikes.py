from __future__ import annotations

import random
from typing import TYPE_CHECKING, Annotated, Any

import typer

from towerpack._core.extras import explain_missing
from towerpack.cli._console import console, escape, table
from towerpack.cli._options import ALLOW_CODE
from towerpack.cli._replay import FLOW, RUN_DIRECTORY, replay_of
from towerpack.cli._run import record_of
from towerpack.cli._user_code import model_of

_OTHERS = 50  # steps whose rows are compared

if TYPE_CHECKING:
    from towerpack.training.replay.batch import Replay


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
    record_of(run)
    with explain_missing("towerpack runs"):
        from towerpack.training.replay.spikes import spikes as spikes_of
    rows = table(">step", f">{number or 'cost'}", ">median around it", ">z")
    ranked = spikes_of(run, number=number, top=top, window=window)
    for step, *values, z in ranked:
        rows.add_row(f"{step:,}", *(f"{value:.4g}" for value in values), f"{z:+.1f}")
    out = console()
    out.print(rows)
    if not (flow or losses or (run / "recipe.yaml").is_file()):
        out.print("To compare their rows with those of other steps, pass --flow FILE.py:FUNCTION.")
        return
    replay = replay_of(run, flow, allow_code)
    steps = sorted(spike.step for spike in ranked)
    _print_common(replay, steps)
    if losses:
        _print_losses(replay, steps, flow and model_of(flow.rpartition(":")[0]))
    else:
        out.print("To name the row with the largest cost of each step, pass --losses.")


def _print_common(replay: Replay, steps: list[int]) -> None:
    from towerpack.training.replay.rows import common_features, read_steps

    every = range(1, replay.history.last + 1)
    drawn = random.Random(0).sample(every, min(_OTHERS + len(steps), len(every)))
    others = sorted([step for step in drawn if step not in steps][:_OTHERS])
    features = common_features(read_steps(replay, steps), read_steps(replay, others))
    if not features:
        console().print(
            f"No source, file, row, class or length is more frequent in them than in {len(others)} "
            "other steps."
        )
        return
    rows = table("their rows", "", ">share", f">in {len(others)} other steps")
    for kind, value, share, other_share in features[:10]:
        rows.add_row(escape(kind), escape(value), f"{share:.1%}", f"{other_share:.1%}")
    console().print(rows)


def _print_losses(replay: Replay, steps: list[int], model: Any) -> None:
    from towerpack.training.replay.rows import row_costs

    columns = ("weights", ">largest cost", ">median", ">row", "source", ">index", "name")
    rows = table(">step", *columns)
    for batch, weights, costs in row_costs(replay, model, steps):
        cells = [f"{batch.step:,}", weights]
        if costs:
            row = costs.index(max(costs))
            cells += [f"{costs[row]:.4g}", f"{sorted(costs)[len(costs) // 2]:.4g}", str(row)]
            if len(batch.origins) == len(costs):
                origin = batch.origins[row]
                cells += [escape(origin.source), f"{origin.index:,}", escape(origin.name or "")]
        rows.add_row(*cells)
    console().print(rows)
