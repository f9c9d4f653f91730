from __future__ import annotations

import json
import math
import time
from dataclasses import asdict
from typing import Annotated

import typer

from towerpack.cli._console import console, escape, pairs
from towerpack.cli._flow import open_flow
from towerpack.cli._machine import size_text
from towerpack.cli._options import JSON, TARGET


def speed(
    target: TARGET,
    num: Annotated[int, typer.Option(min=1, help="Largest number of datapoints to read.")] = 5000,
    seconds: Annotated[float, typer.Option(min=0, help="Largest number of seconds.")] = 10.0,
    warmup: Annotated[int, typer.Option(min=0, help="Number of datapoints to skip first.")] = 0,
    as_json: JSON = False,
) -> None:
    """Measure how many datapoints per second a pipeline reads. Repeats short data."""
    from towerpack.dataflow import TestDataSpeed

    deadline = math.inf

    def is_over(count: int) -> bool:
        nonlocal deadline
        if count == 1:
            deadline = time.monotonic() + seconds
        return time.monotonic() >= deadline

    report = TestDataSpeed(open_flow(target), num, warmup).measure(is_over)
    if as_json:
        typer.echo(json.dumps(asdict(report)))
        return
    first = "" if warmup else ", included in the rate; --warmup 1 excludes it"
    micros = 1e6 * report.seconds / report.datapoints
    rows = [
        ("pipeline", escape(report.pipeline)),
        ("datapoints", f"{report.datapoints:,} in {report.seconds:.3g} s"),
        ("first", f"after {report.first_s:.3g} s{first}"),
        ("rate", f"{report.datapoints_per_second:,.1f} /s, {micros:,.1f} µs each"),
        ("bytes", f"{size_text(report.bytes_per_second)}/s"),
    ]
    console().print(pairs(rows))
