from __future__ import annotations

import itertools
import json
import math
from dataclasses import asdict
from typing import Annotated

import typer

from towerpack.cli._console import console, escape, pairs, table
from towerpack.cli._data_components import components_of
from towerpack.cli._flow import open_flow
from towerpack.cli._machine import size_text
from towerpack.cli._options import JSON, SEED, TARGET


def inspect(
    target: TARGET,
    num: Annotated[int, typer.Option(min=1, help="Number of datapoints to show.")] = 1,
    skip: Annotated[int, typer.Option(min=0, help="Number of datapoints to skip first.")] = 0,
    seed: SEED = 0,
    as_json: JSON = False,
) -> None:
    """Show a pipeline, its length, and the components of its datapoints."""
    from towerpack.dataflow._flow import length_of
    from towerpack.dataflow.stage_context import StageContext

    flow = open_flow(target)
    with flow.iterate(seed=seed, epoch=0) as iterator:
        datapoints = list(itertools.islice(iterator, skip, skip + num))
    length, any_order = length_of(flow), flow.compile_in(StageContext(0)) is not None
    count = "endless" if length == math.inf else None if length is None else int(length)
    shown = [(skip + i, components_of(datapoint)) for i, datapoint in enumerate(datapoints)]
    if as_json:
        rows = [
            {"position": position, "components": [asdict(part) for part in parts]}
            for position, parts in shown
        ]
        tree = {"pipeline": str(flow), "datapoints": count, "random_access": any_order}
        typer.echo(json.dumps({**tree, "shown": rows}))
        return
    out = console()
    count = "unknown" if count is None else f"{count:,}" if isinstance(count, int) else count
    access = "in any order" if any_order else "in order only"
    out.print(pairs([("pipeline", escape(str(flow))), ("datapoints", count), ("read", access)]))
    for position, parts in shown:
        columns = ("component", "type", "shape", "range or value", ">bytes")
        rows = table(*columns, title=f"datapoint {position:,}")
        for part in parts:
            shape = "" if part.shape is None else " × ".join(map(str, part.shape)) or "scalar"
            row = (part.name, part.type, shape, part.value, size_text(part.nbytes))
            rows.add_row(*map(escape, row))
        out.print(rows)
    if not shown:
        out.print("[yellow]No datapoints at these positions.")
