"""`towerpack data`: look at data and measure them."""

from __future__ import annotations

import itertools
import json
import math
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from towerpack._core.errors import ConfigError
from towerpack.cli._ckpt import plain_table
from towerpack.cli._components import Component, components_of
from towerpack.cli._console import console
from towerpack.cli._data_files import open_data
from towerpack.cli._machine import size_text
from towerpack.cli._recipe import load_recipe

if TYPE_CHECKING:
    from towerpack.dataflow import DataFlow, SpeedReport

data_app = typer.Typer(help="Look at data and measure them.", no_args_is_help=True)

Target = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="A file or folder of data, or a recipe: module:function or file.py:function, a "
        "function that returns a DataFlow.",
    ),
]
Seed = Annotated[int | None, typer.Option(help="Of everything random in it.")]


@data_app.callback()
def _data() -> None:  # pyright: ignore[reportUnusedFunction]
    """Look at data and measure them."""


def flow_of(target: str) -> DataFlow:
    """The flow of what the command line names: data on disk, or a recipe.

    Raises:
        ConfigError: It names neither.
    """
    path = Path(os.path.expanduser(target))
    if path.exists():
        if path.suffix == ".py":
            raise ConfigError(
                f"{target} is a program.", fix=f"name the function in it: {target}:function"
            )
        return open_data(path)
    if ":" in target:
        return load_recipe(target)
    raise ConfigError(
        f"There is nothing at {target}, and it is no recipe.",
        expected="a file, a folder, module:function or file.py:function",
    )


@data_app.command()
def inspect(
    target: Target,
    num: Annotated[int, typer.Option(min=1, help="How many datapoints to show.")] = 1,
    skip: Annotated[int, typer.Option(min=0, help="How many to pass over first.")] = 0,
    seed: Seed = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Show the pipeline, its length, and what its datapoints are made of."""
    flow = flow_of(target)
    with flow.iterate(seed=seed, epoch=0) as iterator:
        datapoints = list(itertools.islice(iterator, skip, skip + num))
    shown = [(skip + i, components_of(datapoint)) for i, datapoint in enumerate(datapoints)]
    if as_json:
        typer.echo(json.dumps(_as_json(flow, shown)))
        return
    out = console()
    out.print(_summary(flow))
    for position, components in shown:
        out.print(_component_table(position, components))
    if not shown:
        out.print("[yellow]There are no datapoints here.")


@data_app.command()
def speed(
    target: Target,
    num: Annotated[int, typer.Option(min=1, help="Datapoints to read, at most.")] = 5000,
    seconds: Annotated[float, typer.Option(min=0, help="How long to read, at most.")] = 10.0,
    warmup: Annotated[int, typer.Option(min=0, help="Datapoints to read before.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Measure how fast datapoints come; passes follow one another until there are enough."""
    from towerpack.dataflow import TestDataSpeed

    deadline = math.inf

    def is_over(count: int) -> bool:
        nonlocal deadline
        if count == 1:
            deadline = time.monotonic() + seconds
        return time.monotonic() >= deadline

    report = TestDataSpeed(flow_of(target), num, warmup).measure(is_over)
    if as_json:
        typer.echo(json.dumps(asdict(report)))
    else:
        console().print(_speed_table(report, warmup))


def _grid(rows: list[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in rows:
        table.add_row(label, escape(text))
    return table


def _summary(flow: DataFlow) -> Table:
    length = _length(flow)
    told = "not known" if length is None else length if isinstance(length, str) else f"{length:,}"
    access = "at random" if _has_plan(flow) else "in order only"
    return _grid([("pipeline", str(flow)), ("datapoints", told), ("read", access)])


def _length(flow: DataFlow) -> int | str | None:
    from towerpack.dataflow._flow import length_of

    length = length_of(flow)
    return "endless" if length == math.inf else None if length is None else int(length)


def _has_plan(flow: DataFlow) -> bool:
    from towerpack.dataflow._stage_context import StageContext

    return flow.compile_in(StageContext(0)) is not None


def _component_table(position: int, components: list[Component]) -> Table:
    table = plain_table(f"datapoint {position:,}")
    table.add_column("component", overflow="fold", style="cyan", min_width=9)
    table.add_column("type", overflow="fold")
    table.add_column("shape", overflow="fold")
    table.add_column("range or value", overflow="fold")
    table.add_column("bytes", justify="right", no_wrap=True)
    for one in components:
        shape = "" if one.shape is None else " × ".join(map(str, one.shape)) or "scalar"
        row = (one.name, one.type, shape, one.value, size_text(one.nbytes))
        table.add_row(*map(escape, row))
    return table


def _speed_table(report: SpeedReport, warmup: int) -> Table:
    first = "" if warmup else ", which the rate includes; --warmup 1 leaves it out"
    micros = 1e6 * report.seconds / report.datapoints
    return _grid(
        [
            ("pipeline", report.pipeline),
            ("datapoints", f"{report.datapoints:,} in {report.seconds:.3g} s"),
            ("first", f"after {report.first_s:.3g} s{first}"),
            ("rate", f"{report.datapoints_per_second:,.1f} /s, {micros:,.1f} µs each"),
            ("bytes", f"{size_text(report.bytes_per_second)}/s"),
        ]
    )


def _as_json(flow: DataFlow, shown: list[tuple[int, list[Component]]]) -> dict[str, Any]:
    return {
        "pipeline": str(flow),
        "datapoints": _length(flow),
        "random_access": _has_plan(flow),
        "shown": [
            {"position": position, "components": [asdict(one) for one in components]}
            for position, components in shown
        ],
    }
