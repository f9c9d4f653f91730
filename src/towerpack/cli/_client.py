from __future__ import annotations

import json
import os
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer

from towerpack._core.errors import ConfigError, RequestError, TowerpackError
from towerpack._core.extras import explain_missing
from towerpack._core.naming import unique
from towerpack.cli._console import console, escape, table
from towerpack.cli._options import JSON_LINES

_LEAST_SCORE: Final = 0.5
_LONGEST: Final = 60


def client(
    url: Annotated[str, typer.Argument(help="URL of the server, such as http://127.0.0.1:8501.")],
    sources: Annotated[
        list[str],
        typer.Argument(
            help="Image files. For text models: texts, or files with one text per line."
        ),
    ],
    name: Annotated[
        str | None, typer.Option(help="Name of the model (default: the only one of the server).")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Number of classes to show.")] = 3,
    out: Annotated[Path | None, typer.Option(help="Folder for images in responses.")] = None,
    token: Annotated[str | None, typer.Option(envvar="TOWERPACK_TOKEN")] = None,
    as_json: JSON_LINES = False,
) -> None:
    """Send images or texts to a server of `towerpack serve`, and show its predictions.

    If the server rejects a source, its row shows the error and the exit code is 1.
    """
    from towerpack.serving import Client

    with Client(url, name, token=token) as server, _expecting(url):
        metadata = server.metadata()["metadata"]
        signatures = metadata["signature_def"]["signature_def"]
        wanted = signatures["serving_default"]["inputs"]
        description: Mapping[str, Any] = metadata.get("towerpack", {})
        if "text" in wanted:
            with explain_missing("Texts"):
                from towerpack.apps.text import text_of, text_sources

            sample = description.get("sample", {})
            more = {key: value for key, value in sample.items() if key in wanted}
            texts = [text_of(source, empty=True) for source in text_sources(sources)]
            requests = [(text, {"text": [text], **more}) for text in texts]
        else:
            from towerpack.dataflow.sources.discovery import Discovery

            files = [
                f for s in sources for f in (Discovery().files(s) if os.path.isdir(s) else [s])
            ]
            missing = [file for file in files if not os.path.isfile(file)]
            if missing:
                raise ConfigError(f"The image file {missing[0]} does not exist.")
            requests = [(file, Path(file)) for file in files]
        class_names = description.get("class_names", [])
        rows: list[dict[str, Any]] = []
        used: set[str] = set()
        for source, inputs in requests:
            file = None if out is None else out / unique(Path(source).stem, used)
            used.add("" if file is None else file.name)
            rows.append(_row(server, source, inputs, class_names, top, file))
    if as_json:
        for row in rows:
            print(json.dumps(row, ensure_ascii=False))
    else:
        _show(rows)
    if any("error" in row for row in rows):
        raise typer.Exit(1)


@contextmanager
def _expecting(url: str) -> Generator[None]:
    """Report responses that do not have the expected form."""
    try:
        yield
    except TowerpackError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        what = f"The server {url} sent a response of unexpected form: {error!r:.200}."
        raise RequestError(what, status=0, fix="pass the URL of `towerpack serve`") from error


def _row(
    server: Any, source: str, inputs: Any, names: list[str], top: int, file: Path | None
) -> dict[str, Any]:
    """Return the prediction for a source (classes, objects, text or images), or its error."""
    row: dict[str, Any] = {"source": source}
    try:
        outputs = {key: array[0] for key, array in server.predict(inputs).items()}
    except RequestError as error:
        if error.status != 400:
            raise
        return {**row, "error": error.what}
    if "probabilities" in outputs:
        best = outputs["probabilities"].argsort()[::-1][:top]
        return {
            **row,
            "classes": [f"{names[i]}" if i < len(names) else f"class {i}" for i in best.tolist()],
            "probabilities": [round(float(outputs["probabilities"][i]), 6) for i in best],
        }
    if "boxes" in outputs:
        is_object = outputs["scores"] > 0
        columns = (outputs[key][is_object].tolist() for key in ("classes", "scores", "boxes"))
        return {
            **row,
            "objects": [
                {"class": name.decode(), "score": score, "box": box}
                for name, score, box in zip(*columns, strict=True)
            ],
        }
    for key, value in outputs.items():
        if key.endswith("_bytes"):
            row[key.removesuffix("_bytes")] = _save(bytes(value), key, file)
        elif isinstance(value, bytes):
            row[key] = value.decode()
        elif not key.startswith("state_"):
            row[key] = np.asarray(value).tolist()
    return row


def _save(image: bytes, key: str, file: Path | None) -> str:
    """Write an image to a file named after the source and the output. Return the path."""
    if file is None:
        return f"{len(image):,} bytes (pass --out FOLDER to save the image)"
    ending = "png" if image.startswith(b"\x89PNG") else "jpg"
    file.parent.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^\w-]", "_", key.removesuffix("_bytes"))[:_LONGEST]  # the server chooses it
    path = file.with_name(f"{file.name}.{name}.{ending}")
    path.write_bytes(image)
    return str(path)


def _show(rows: list[dict[str, Any]]) -> None:
    predictions = table("source", "prediction")
    for row in rows:
        if "error" in row:
            text = f"[red]{escape(row['error'])}[/]"
        elif "probabilities" in row:
            pairs = zip(row["classes"], row["probabilities"], strict=True)
            text = ", ".join(f"{escape(name)} {100 * p:.1f} %" for name, p in pairs)
        elif "objects" in row:
            likely = [item for item in row["objects"] if item["score"] >= _LEAST_SCORE]
            items = (f"{escape(item['class'])} {100 * item['score']:.0f} %" for item in likely)
            text = ", ".join(items) or "nothing"
        else:
            text = escape("\n".join(str(v) for k, v in row.items() if k != "source"))
        source = str(row["source"])
        short = source if len(source) <= _LONGEST else f"{source[:_LONGEST]} …"
        predictions.add_row(escape(short), text)
    console().print(predictions)
