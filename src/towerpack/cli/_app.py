from __future__ import annotations

import os
import sys
import traceback
from typing import Annotated

import typer

from towerpack import __version__
from towerpack._core.errors import TowerpackError
from towerpack._core.native_log import DEBUG
from towerpack.cli._console import visible, write_plainly
from towerpack.cli._tracebacks import cause_of, traceback_of
from towerpack.cli._wording import in_commands

app = typer.Typer(
    name="towerpack",
    no_args_is_help=True,
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
    debug: Annotated[
        bool,
        typer.Option("--debug", help="Show tracebacks and TensorFlow's log, in any command."),
    ] = False,
) -> None:
    """Train networks with TensorFlow and Keras."""


def main() -> None:
    """Run the `towerpack` command.

    If a command fails, print the error without the frames of Towerpack, and exit with code 1.
    With `--debug`, print the full traceback.
    """
    write_plainly()
    # Several commands and their subprocesses can then share a GPU.
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    if "--debug" in sys.argv:
        sys.argv.remove("--debug")  # may also follow the command
        os.environ[DEBUG] = "1"
    try:
        app()
    except Exception as error:  # noqa: BLE001 - every error is printed
        _print(error)
        sys.exit(1)


def _print(error: Exception) -> None:
    if os.environ.get(DEBUG):
        traceback.print_exception(error)
    elif isinstance(error, TowerpackError):
        in_commands(error, next((word for word in sys.argv[1:] if word[0] != "-"), ""))
        cause = cause_of(error)
        # `typer.echo` would write UTF-8 to ASCII terminals.
        if cause is not None:
            print(visible(cause), file=sys.stderr)
        print(visible(f"{type(error).__name__}: {error}"), file=sys.stderr)
    else:
        trace = visible(traceback_of(error))
        print(f"{trace}\n(pass --debug for the full traceback)", file=sys.stderr)
