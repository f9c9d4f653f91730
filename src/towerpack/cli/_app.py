"""The program that the commands join."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from towerpack import __version__
from towerpack._core.errors import TowerpackError
from towerpack.cli._console import write_plainly
from towerpack.cli._tracebacks import cause_of

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
    """Run the command line; the entry point of the `towerpack` script.

    An error that we raise on purpose gives exit code 1, and is told without a traceback; but if
    the user's code raised, with that which leads into it.
    """
    write_plainly()
    try:
        app()
    except TowerpackError as error:
        cause = cause_of(error)
        # Not `typer.echo`, which writes UTF-8 to terminals that take ASCII.
        if cause is not None:
            print(cause, file=sys.stderr)
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(1)
