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
        typer.Option(help="Name of a client that connects. Repeat the option for several."),
    ] = None,
) -> None:
    """Create keys for `towerpack data serve` and RemoteDataZMQ.

    Other machines need a key to connect. An existing folder keeps its keys and gets additional keys
    for the new clients.
    """
    from towerpack.dataflow.remote import generate_keys

    names = client or ["client"]
    generate_keys(folder, names)
    console = Console(highlight=False, soft_wrap=True)
    where = escape(str(folder))
    console.print(f"Wrote keys for {escape(', '.join(names))} to [bold]{where}[/].")
    console.print(f"  the side that listens needs   {where}/server.key_secret, {where}/allowed/")
    for name in names:
        secret = escape(f"{folder}/{name}.key_secret")
        console.print(f"  the side that connects needs  {where}/server.key, {secret}")
    console.print("Copy them over a secure channel (scp), and pass the folder as keys= or --keys.")
