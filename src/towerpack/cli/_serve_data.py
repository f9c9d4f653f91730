"""`towerpack data serve` and `towerpack data keys`: data for other processes and machines."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from towerpack._core.errors import ConfigError
from towerpack._core.logs import console as show_log
from towerpack.cli._data import Seed, Target, flow_of


def serve(
    target: Target,
    to: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Where a RemoteDataZMQ listens: tcp://host:port."),
    ] = None,
    bind: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Listen here, for a RemoteDataZMQ(bind=False)."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="What the consumer knows this producer by.")
    ] = None,
    keys: Annotated[
        Path | None,
        typer.Option(help="The folder of `towerpack data keys`, or one secret key in it."),
    ] = None,
    hwm: Annotated[int, typer.Option(min=1, help="How many datapoints may wait here.")] = 50,
    passes: Annotated[
        int | None, typer.Option(min=1, help="Passes over the data; else endless.")
    ] = None,
    seed: Seed = None,
) -> None:
    """Send data to a RemoteDataZMQ, until Ctrl-C or until the passes are over.

    What is on its way when it ends is lost; started again, it begins anew.
    """
    from towerpack.dataflow import send_dataflow_zmq

    if (to is None) == (bind is None):
        raise ConfigError(
            "A producer has one address.",
            got="neither --to nor --bind" if to is None else "--to and --bind",
            fix="pass --to with the address of a RemoteDataZMQ, or --bind to listen for one",
        )
    show_log()
    address = to if to is not None else str(bind)
    try:
        send_dataflow_zmq(
            flow_of(target),
            address,
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


def keys(
    folder: Annotated[Path, typer.Argument(help="Where to; made if it is not there.")],
    client: Annotated[
        list[str] | None,
        typer.Option(help="A name for one who connects; give it several times for several."),
    ] = None,
) -> None:
    """Make keys for `towerpack data serve` and RemoteDataZMQ.

    Other machines are let in only with keys. In a folder that has keys, those of further clients
    are added.
    """
    from towerpack.dataflow.remote import generate_keys

    names = client or ["client"]
    generate_keys(folder, names)
    console = Console(highlight=False, soft_wrap=True)
    where = escape(str(folder))
    console.print(f"Keys for {escape(', '.join(names))} are in [bold]{where}[/].")
    console.print(f"  the side that listens needs   {where}/server.key_secret, {where}/allowed/")
    for each in names:
        secret = escape(f"{folder}/{each}.key_secret")
        console.print(f"  the side that connects needs  {where}/server.key, {secret}")
    console.print("Copy them over a safe way (scp), and pass the folder as keys= or --keys.")
