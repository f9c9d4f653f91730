from __future__ import annotations

import functools
import random
from typing import TYPE_CHECKING, Annotated

import typer

from towerpack._core.errors import ConfigError
from towerpack._core.extras import explain_missing
from towerpack.cli._console import console, escape, table
from towerpack.cli._options import ALLOW_CODE
from towerpack.cli._replay import FLOW, RUN_DIRECTORY, replay_of
from towerpack.cli._run import record_of
from towerpack.cli._user_code import model_of

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
    model: Annotated[
        str | None,
        typer.Option(metavar="FILE.py:NAME", help="Model for --losses (default: that of --flow)."),
    ] = None,
    others: Annotated[int, typer.Option(help="Number of other steps whose rows to compare.")] = 50,
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
    _print_common(replay, steps, others)
    if losses:
        _print_losses(replay, steps, model or (flow or "").rpartition(":")[0])


def _print_common(replay: Replay, steps: list[int], others: int) -> None:
    from towerpack.training.replay.rows import common_features, read_steps

    every = range(1, replay.history.last + 1)
    drawn = random.Random(0).sample(every, min(others + len(steps), len(every)))
    compared = sorted([step for step in drawn if step not in steps][:others])
    features = common_features(read_steps(replay, steps), read_steps(replay, compared))
    out = console()
    if not features:
        out.print(f"Their rows have nothing in common that those of {len(compared)} others lack.")
        return
    rows = table("their rows", "", ">share", f">in {len(compared)} other steps")
    for kind, value, share, other_share in features[:10]:
        rows.add_row(escape(kind), escape(value), f"{share:.1%}", f"{other_share:.1%}")
    out.print(rows)


def _print_losses(replay: Replay, steps: list[int], model: str) -> None:
    from towerpack.training.replay.rows import cost_predictor, read_steps, row_costs

    checkpoints = {step: replay.history.checkpoint_before(step) for step in steps}
    if not any(checkpoints.values()):
        raise ConfigError(
            f"{replay.history.run} has no checkpoint from before any of these steps, whose costs "
            "need weights.",
            fix="save more checkpoints in later runs, with ModelSaver(keep=…) or train.keep",
        )
    built = model_of(model) if model else replay.model
    # Steps are in order, so those of one checkpoint follow each other.
    predictor_of = functools.lru_cache(maxsize=1)(functools.partial(cost_predictor, built))
    rows = table(">step", ">largest cost", ">median", ">row", "source", ">index", "name")
    for batch in read_steps(replay, steps):
        checkpoint = checkpoints[batch.step]
        if checkpoint is None:
            rows.add_row(f"{batch.step:,}", "no checkpoint before it")
            continue
        costs = row_costs(predictor_of(checkpoint), batch)
        row, middle = int(costs.argmax()), sorted(costs)[len(costs) // 2]
        cells = [f"{batch.step:,}", f"{costs[row]:.4g}", f"{middle:.4g}", str(row)]
        if len(batch.origins) == len(costs):
            origin = batch.origins[row]
            cells += [escape(origin.source), f"{origin.index:,}", escape(origin.name or "")]
        rows.add_row(*cells)
    console().print(rows)
