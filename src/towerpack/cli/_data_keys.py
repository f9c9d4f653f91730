"""`towerpack data keys`: make keys for data between machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from towerpack.cli._console import escape


def keys(
    folder: Annotated[Path, typer.Argument(help="Folder for the keys; created if missing.")],
    client: Annotated[
        list[str] | None,
        typer.Option(help="Name of a client that connects; repeat the option for several."),
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
    for name in names:
        secret = escape(f"{folder}/{name}.key_secret")
        console.print(f"  the side that connects needs  {where}/server.key, {secret}")
    console.print("Copy them over a safe way (scp), and pass the folder as keys= or --keys.")
