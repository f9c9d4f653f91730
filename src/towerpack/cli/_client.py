"""`towerpack client`: predictions of a server for pictures and texts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer
from rich.markup import escape

from towerpack._core.errors import ConfigError, RequestError
from towerpack._core.extras import explain_missing
from towerpack._core.naming import unique
from towerpack.cli._console import console, table
from towerpack.cli._options import JSON_LINES

_LEAST_SCORE: Final = 0.5
_LONGEST: Final = 60


def client(
    url: Annotated[str, typer.Argument(help="The server's: http://127.0.0.1:8501")],
    sources: Annotated[
        list[str],
        typer.Argument(
            help="Picture files; of models of texts: texts, files of them, a line each."
        ),
    ],
    name: Annotated[
        str | None, typer.Option(help="The model's; else the server's only one.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="How many classes to show.")] = 3,
    out: Annotated[Path | None, typer.Option(help="Where pictures of answers go.")] = None,
    token: Annotated[str | None, typer.Option(envvar="TOWERPACK_TOKEN")] = None,
    as_json: JSON_LINES = False,
) -> None:
    """Ask a server of `towerpack serve` about pictures or texts.

    A source that the server refuses is told in its place; then the exit code is 1.
    """
    from towerpack.serving import Client

    with Client(url, name, token=token) as server:
        metadata = server.metadata()["metadata"]
        signatures = metadata["signature_def"]["signature_def"]
        wanted = signatures["serving_default"]["inputs"]
        about: Mapping[str, Any] = metadata.get("towerpack", {})
        if "text" in wanted:
            with explain_missing("Texts"):
                from towerpack.apps.text import text_of, text_sources

            more = {key: value for key, value in about.get("sample", {}).items() if key in wanted}
            texts = [text_of(source, empty=True) for source in text_sources(sources)]
            asked = [(text, {"text": [text], **more}) for text in texts]
        else:
            missing = [file for file in sources if not Path(file).is_file()]
            if missing:
                raise ConfigError(f"There is no file {missing[0]}.")
            asked = [(file, Path(file)) for file in sources]
        rows: list[dict[str, Any]] = []
        taken: set[str] = set()
        for source, inputs in asked:
            file = None if out is None else out / unique(Path(source).stem, taken)
            taken.add("" if file is None else file.name)
            rows.append(_row(server, source, inputs, about.get("class_names", []), top, file))
    if as_json:
        for row in rows:
            print(json.dumps(row, ensure_ascii=False))
    else:
        _show(rows)
    if any("error" in row for row in rows):
        raise typer.Exit(1)


def _row(
    server: Any, source: str, inputs: Any, names: list[str], top: int, file: Path | None
) -> dict[str, Any]:
    """Answer for one source: classes, objects, a text, pictures; or an error."""
    row: dict[str, Any] = {"source": source}
    try:
        found = {key: array[0] for key, array in server.predict(inputs).items()}
    except RequestError as error:
        if error.status != 400:
            raise
        return {**row, "error": error.what}
    if "probabilities" in found:
        best = found["probabilities"].argsort()[::-1][:top]
        return {
            **row,
            "classes": [names[i] if i < len(names) else f"class {i}" for i in best.tolist()],
            "probabilities": [round(float(found["probabilities"][i]), 6) for i in best],
        }
    if "boxes" in found:
        there = found["scores"] > 0
        columns = (found[key][there].tolist() for key in ("classes", "scores", "boxes"))
        return {
            **row,
            "objects": [
                {"class": name.decode(), "score": score, "box": box}
                for name, score, box in zip(*columns, strict=True)
            ],
        }
    for key, value in found.items():
        if key.endswith("_bytes"):
            row[key.removesuffix("_bytes")] = _kept(bytes(value), key, file)
        elif isinstance(value, bytes):
            row[key] = value.decode()
        elif not key.startswith("state_"):
            row[key] = np.asarray(value).tolist()
    return row


def _kept(picture: bytes, key: str, file: Path | None) -> str:
    """Name of the file that a picture was written to: `file` and what it is."""
    if file is None:
        return f"{len(picture):,} bytes (--out FOLDER keeps them)"
    ending = "png" if picture.startswith(b"\x89PNG") else "jpg"
    file.parent.mkdir(parents=True, exist_ok=True)
    written = file.with_name(f"{file.name}.{key.removesuffix('_bytes')}.{ending}")
    written.write_bytes(picture)
    return str(written)


def _show(rows: list[dict[str, Any]]) -> None:
    made = table("source", "prediction")
    for row in rows:
        if "error" in row:
            told = f"[red]{escape(row['error'])}[/]"
        elif "probabilities" in row:
            pairs = zip(row["classes"], row["probabilities"], strict=True)
            told = ", ".join(f"{escape(name)} {100 * p:.1f} %" for name, p in pairs)
        elif "objects" in row:
            sure = [one for one in row["objects"] if one["score"] >= _LEAST_SCORE]
            told = ", ".join(f"{escape(one['class'])} {100 * one['score']:.0f} %" for one in sure)
            told = told or "nothing"
        else:
            told = escape("\n".join(str(v) for k, v in row.items() if k != "source"))
        source = str(row["source"])
        short = source if len(source) <= _LONGEST else f"{source[:_LONGEST]} …"
        made.add_row(escape(short), told)
    console().print(made)
