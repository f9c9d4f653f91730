from __future__ import annotations

import json

import typer

from towerpack.cli._console import console, escape, table
from towerpack.cli._options import ALLOW_CODE, JSON
from towerpack.cli._replay import FLOW, RUN_DIRECTORY, replay_of


def data(
    run: RUN_DIRECTORY, flow: FLOW = None, allow_code: ALLOW_CODE = False, as_json: JSON = False
) -> None:
    """Count how often the steps of a run read each row of its data."""
    replay = replay_of(run, flow, allow_code)
    from towerpack.training.replay.audit import rows_read

    every = replay.history.segments
    segments = [segment for segment in every if not replay.difference(segment)] or every[:1]
    counts = {name: read.tolist() for name, read in rows_read(replay, segments).items()}
    steps: list[list[int]] = []
    for segment in segments:
        first = segment.start.step + 1
        if steps and steps[-1][1] == segment.start.step:
            (first, _) = steps.pop()
        steps.append([first, segment.stop])
    if as_json:
        typer.echo(json.dumps({"run": str(run), "steps": steps, "times_read": counts}))
        return
    total = sum(map(sum, counts.values())) or 1
    rows = table("source", ">rows", ">reads", ">share", ">least", ">most", ">never")
    for name, read in counts.items():
        numbers = [f"{number:,}" for number in (min(read), max(read), read.count(0))]
        reads = [f"{len(read):,}", f"{sum(read):,}", f"{sum(read) / total:.1%}"]
        rows.add_row(escape(name), *reads, *numbers)
    trained = ", ".join(f"{first:,} to {last:,}" for first, last in steps)
    console().print(f"Steps {trained} have trained on each row so many times:")
    console().print(rows)
    if len(segments) < len(every):
        console().print("Other steps had another pipeline: pass the --flow that they had.")
