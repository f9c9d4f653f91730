"""`towerpack data serve`: send data to other processes and machines."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from towerpack._core.errors import ConfigError
from towerpack._core.logs import console as show_log
from towerpack.cli._flow import open_flow
from towerpack.cli._options import SEED, TARGET


def serve(
    target: TARGET,
    to: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Where a RemoteDataZMQ listens: tcp://host:port."),
    ] = None,
    bind: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Listen here, for a RemoteDataZMQ(bind=False)."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name under which the consumer knows this producer.")
    ] = None,
    keys: Annotated[
        Path | None,
        typer.Option(help="The folder of `towerpack data keys`, or one secret key in it."),
    ] = None,
    hwm: Annotated[int, typer.Option(min=1, help="Number of datapoints that may wait here.")] = 50,
    passes: Annotated[
        int | None, typer.Option(min=1, help="Passes over the data; else endless.")
    ] = None,
    seed: SEED = None,
) -> None:
    """Send data to a RemoteDataZMQ, until Ctrl-C or until the passes are over.

    Datapoints in transit at the end are lost. A second start begins with the first pass.
    """
    from towerpack.dataflow import send_dataflow_zmq

    if (to is None) == (bind is None):
        raise ConfigError(
            "A producer has one address.",
            got="neither --to nor --bind" if to is None else "--to and --bind",
            fix="pass --to with the address of a RemoteDataZMQ, or --bind to listen for one",
        )
    show_log()
    try:
        send_dataflow_zmq(
            open_flow(target),
            to if to is not None else str(bind),
            hwm,
            bind=bind is not None,
            passes=passes,
            name=name,
            seed=seed,
            keys=keys,
        )
    except KeyboardInterrupt:
        # The usual way to end it.
        sys.exit(130)
