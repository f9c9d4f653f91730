from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from towerpack._core.errors import ConfigError
from towerpack._core.extras import require
from towerpack._core.logs import console as show_log
from towerpack.cli._run import files_of


def serve(
    export_dir: Annotated[
        str,
        typer.Argument(
            metavar="RUN_OR_EXPORT_DIR",
            help="An exported run (directory, URL or recipe), or a directory of versions written "
            "by `towerpack export`.",
        ),
    ],
    name: Annotated[
        str | None, typer.Option(help="Name of the model in URLs (default: the run's name).")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 accepts other machines.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 chooses a free port.")
    ] = 8501,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="TOWERPACK_TOKEN",
            help="Accept only requests with `Authorization: Bearer TOKEN`.",
        ),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Maximum batch size.")] = 32,
    body_mb: Annotated[float, typer.Option(min=0.001, help="Maximum request body in MiB.")] = 16.0,
) -> None:
    """Serve an exported model with TensorFlow Serving's REST protocol and a test page.

    New versions in the directory are loaded when they appear. Ctrl-C or SIGTERM ends the server
    after the current requests.
    """
    require("fastapi", extra="serve,tf", needed_for="The server")
    from towerpack.serving import Limits
    from towerpack.serving import serve as run_server
    from towerpack.serving.gate import LOOPBACK

    # Otherwise TensorFlow logs a warning for each request that the model rejects.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    show_log()

    folder, default_name = _exported(files_of(export_dir, "export"))
    model = default_name if name is None else name

    def ready(url: str) -> None:
        typer.echo(f"Serving {model} at {url}/ (a page) and {url}/v1/models/{model}:predict")
        if token is None and host not in LOOPBACK:
            text = "Everyone who can reach this machine can use the server: set --token."
            typer.echo(text, err=True)

    if token is None:  # Typer ignores an empty variable
        token = os.environ.get("TOWERPACK_TOKEN")
    limits = Limits(batch=batch, body_bytes=round(body_mb * 2**20))
    run_server(folder, name=model, host=host, port=port, token=token, limits=limits, ready=ready)


def _exported(path: Path) -> tuple[Path, str]:
    """Return the directory of the exported versions, and the name of its run or folder."""
    inner, run = Path("export") / "saved_model", path
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise ConfigError(
                f"There is no recipe {str(path)!r}.",
                expected="a run, an exported model or a recipe file",
            )
        name = path.absolute().parent.name if path.name == "recipe.yaml" else path.stem
        is_stored = (path.parent / "checkpoints").is_dir()
        run = path.parent if is_stored else Path("runs") / name
    for folder in (run, Path("runs") / run):
        if (folder / inner).is_dir():
            return folder / inner, folder.resolve().name
        if run != path or (folder / "checkpoints").is_dir():
            raise ConfigError(
                f"{folder} must be exported as a SavedModel before it can be served.",
                fix=f"run `towerpack export {folder}`, or serve another directory",
            )
    whole = path.resolve()
    in_run = whole.parent.name == "export" and (whole.parents[1] / "checkpoints").is_dir()
    return path, whole.parents[1].name if in_run else whole.name
