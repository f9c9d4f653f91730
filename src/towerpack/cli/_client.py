"""`towerpack client`: predictions of a server for picture files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from towerpack._core.errors import ConfigError, RequestError
from towerpack.cli._console import console


def client(
    url: Annotated[str, typer.Argument(help="The server's: http://127.0.0.1:8501")],
    files: Annotated[list[Path], typer.Argument(help="Picture files.")],
    name: Annotated[
        str | None, typer.Option(help="The model's; else the server's only one.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="How many classes to show.")] = 3,
    token: Annotated[str | None, typer.Option(envvar="TOWERPACK_TOKEN")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Ask a server of `towerpack serve` what pictures show.

    A picture that the server refuses is told in its place; then the exit code is 1.
    """
    from towerpack.serving import Client

    for path in files:
        if not path.is_file():
            raise ConfigError(f"There is no file {path}.")
    with Client(url, name, token=token) as server:
        classes = server.metadata()["metadata"].get("towerpack", {}).get("class_names", [])
        rows = [_row(server, path, classes, top) for path in files]
    if as_json:
        for row in rows:
            print(json.dumps(row))
    else:
        _show(rows)
    if any("error" in row for row in rows):
        raise typer.Exit(1)


def _row(server: Any, path: Path, classes: list[str], top: int) -> dict[str, Any]:
    """What the server says of a file: classes with their probabilities, or an error."""
    try:
        found = {key: array[0] for key, array in server.predict(path).items()}
    except RequestError as error:
        if error.status != 400:
            raise
        return {"file": str(path), "error": error.what}
    if "probabilities" not in found:
        return {"file": str(path), **{key: str(value) for key, value in found.items()}}
    best = found["probabilities"].argsort()[::-1][:top]
    return {
        "file": str(path),
        "classes": [classes[i] if i < len(classes) else f"class {i}" for i in best.tolist()],
        "probabilities": [round(float(found["probabilities"][i]), 6) for i in best],
    }


def _show(rows: list[dict[str, Any]]) -> None:
    table = Table("file", "prediction", box=None)
    for row in rows:
        if "error" in row:
            told = f"[red]{escape(row['error'])}[/]"
        elif "probabilities" in row:
            pairs = zip(row["classes"], row["probabilities"], strict=True)
            told = ", ".join(f"{escape(name)} {100 * p:.1f} %" for name, p in pairs)
        else:
            told = escape(", ".join(f"{k}: {v}" for k, v in row.items() if k != "file"))
        table.add_row(escape(row["file"]), told)
    console().print(table)
