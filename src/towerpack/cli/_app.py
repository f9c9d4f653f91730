"""The program that the commands join."""

from __future__ import annotations

from typing import Annotated

import typer

from towerpack import __version__

app = typer.Typer(
    name="towerpack",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"towerpack {__version__}")
        raise typer.Exit


@app.callback()
def _options(  # pyright: ignore[reportUnusedFunction]
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Train networks with TensorFlow and Keras."""


def main() -> None:
    """Run the command line; the entry point of the `towerpack` script."""
    app()
