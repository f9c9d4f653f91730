"""`towerpack serve`: an exported model over HTTP."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from towerpack._core.errors import ConfigError
from towerpack._core.extras import require
from towerpack._core.logs import console as show_log


def serve(
    export_dir: Annotated[
        Path,
        typer.Argument(
            metavar="RUN_OR_EXPORT_DIR",
            help="A run that was exported (or its recipe), or the directory that "
            "`towerpack export` wrote: EXPORT_DIR/1, 2, ….",
        ),
    ],
    name: Annotated[
        str | None, typer.Option(help="The model's name in paths; else the run's.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Where to listen; 0.0.0.0 lets other machines in.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes one that is free.")] = 8501,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="TOWERPACK_TOKEN",
            help="Answer only requests with `Authorization: Bearer TOKEN`.",
        ),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="The most rows computed at once.")] = 32,
    body_mb: Annotated[
        float, typer.Option(min=0.001, help="The largest body taken, in MiB.")
    ] = 16.0,
) -> None:
    """Serve an exported model: TensorFlow Serving's REST protocol, and a page to try it.

    A new version in the directory is taken when it appears. Ctrl-C or SIGTERM ends the server when
    what is being answered is answered.
    """
    require("fastapi", extra="serve,tf", needed_for="The server")
    from towerpack.serving import Limits
    from towerpack.serving import serve as run_server
    from towerpack.serving.gate import LOOPBACK

    # Else each request that the model refuses is a warning of TensorFlow's native code.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    show_log()

    export_dir, found = _exported(export_dir)
    model = found if name is None else name

    def ready(url: str) -> None:
        typer.echo(f"Serving {model} at {url}/ (a page) and {url}/v1/models/{model}:predict")
        if token is None and host not in LOOPBACK:
            typer.echo("Whoever reaches this machine can use it: --token asks for one.", err=True)

    if token is None:  # Typer leaves out an empty variable.
        token = os.environ.get("TOWERPACK_TOKEN")
    limits = Limits(batch=batch, body_bytes=round(body_mb * 2**20))
    run_server(
        export_dir, name=model, host=host, port=port, token=token, limits=limits, ready=ready
    )


def _exported(given: Path) -> tuple[Path, str]:
    """Return the directory of the versions, and the name of their run or folder."""
    inner, run = Path("export") / "saved_model", given
    if given.suffix in (".yaml", ".yml"):
        if not given.is_file():
            raise ConfigError(f"There is no recipe {str(given)!r}.")
        name = given.absolute().parent.name if given.name == "recipe.yaml" else given.stem
        is_stored = (given.parent / "checkpoints").is_dir()
        run = given.parent if is_stored else Path("runs") / name
    for found in (run, Path("runs") / run):
        if (found / inner).is_dir():
            return found / inner, found.resolve().name
        if run != given or (found / "checkpoints").is_dir():
            what = f"{found} has not been exported to a SavedModel."
            raise ConfigError(
                what, fix=f"run `towerpack export {found}`, or serve another directory"
            )
    whole = given.resolve()
    of_a_run = whole.parent.name == "export" and (whole.parents[1] / "checkpoints").is_dir()
    return given, whole.parents[1].name if of_a_run else whole.name
