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
        typer.Option(metavar="ADDRESS", help="Address of a RemoteDataZMQ: tcp://host:port."),
    ] = None,
    bind: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Address to listen on for RemoteDataZMQ(bind=False)."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of this producer for consumers.")] = None,
    keys: Annotated[
        Path | None,
        typer.Option(help="Folder of `towerpack data keys`, or a secret key in it."),
    ] = None,
    hwm: Annotated[int, typer.Option(min=1, help="Number of datapoints that may wait.")] = 50,
    passes: Annotated[
        int | None, typer.Option(min=1, help="Number of passes over the data (default: endless).")
    ] = None,
    seed: SEED = None,
) -> None:
    """Send data to a RemoteDataZMQ until Ctrl-C or until the last pass ends.

    Datapoints in transit at the end are lost. After a restart, the first pass is sent again.
    """
    from towerpack.dataflow import send_dataflow_zmq

    if (to is None) == (bind is None):
        raise ConfigError(
            "`towerpack data serve` needs exactly one of --to and --bind.",
            got="neither" if to is None else "both",
            fix="pass --to with the address of a RemoteDataZMQ, or --bind to wait for connections",
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
        sys.exit(130)
