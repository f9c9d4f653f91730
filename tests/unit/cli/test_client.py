"""`towerpack client` and a server that is hostile, or another program."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from towerpack import ConfigError, RequestError
from towerpack.cli import app
from towerpack.serving import Client

IMAGE = {"b64": "iVBORw0KGgo="}


class Answers:
    """A server with an answer for the model's metadata and one for predictions."""

    def __init__(self) -> None:
        self.outputs: Any = {}
        self.rows: Any = {}
        self.metadata: Any = None
        self.status = 200

    def of(self, path: str) -> Any:
        if path == "/v1/models":
            return {"models": [{"name": "m"}]}
        if path.endswith(":predict"):
            return {"outputs": self.rows}
        infos = {name: {"dtype": dtype} for name, dtype in self.outputs.items()}
        signatures = {"serving_default": {"inputs": {"image_bytes": {}}, "outputs": infos}}
        return self.metadata or {"metadata": {"signature_def": {"signature_def": signatures}}}


@pytest.fixture
def server() -> Iterator[tuple[str, Answers]]:
    answers = Answers()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            body = json.dumps(answers.of(self.path.partition("?")[0])).encode()
            self.send_response(answers.status if self.path.count(":predict") else 200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815 - named by the base class

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}", answers
        http.shutdown()
        thread.join()


@pytest.mark.parametrize("name", ["../../x", "/x", "a\0b", "n" * 400, "..", "style"])
def test_images_stay_in_the_folder(server: Any, tmp_path: Path, name: str) -> None:
    url, answers = server
    answers.outputs, answers.rows = {f"{name}_bytes": "DT_STRING"}, [IMAGE]
    photo, out = tmp_path / "in" / "photo.jpg", tmp_path / "in" / "out"
    photo.parent.mkdir()
    photo.write_bytes(b"x")
    done = CliRunner().invoke(app, ["client", url, str(photo), f"--out={out}", "--json"])
    assert done.exit_code == 0, done.exception
    [file] = out.iterdir()
    assert re.fullmatch(r"photo\.[\w.-]{1,100}\.png", file.name) and file.is_file()
    assert sorted(p.name for p in tmp_path.rglob("*") if p.is_file()) == sorted(
        [file.name, "photo.jpg"]
    )


def test_hints_of_the_client(server: Any) -> None:
    url, answers = server
    answers.status = 400
    with Client(url) as client:
        with pytest.raises(RequestError) as refused:
            client.predict(np.zeros((1, 2, 2, 3), np.uint8))
        assert "signature='tensors'" in str(refused.value.fix)
        with pytest.raises(RequestError) as refused:
            client.predict(np.zeros((1, 2, 2, 3), np.uint8), "tensors")
        assert refused.value.fix is None
        with pytest.raises(ConfigError, match=r"for path in paths"):
            client.predict(["a.jpg", "b.jpg"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("outputs", "rows", "metadata"),
    [
        ({"text": "DT_STRING"}, [{"b64": "/w=="}], None),
        ({"y": "DT_NONSENSE"}, [1], None),
        ({"y": "DT_FLOAT"}, {"z": 3}, None),
        ({"y": "DT_FLOAT", "z": "DT_FLOAT"}, [1], None),
        ({"y": "DT_FLOAT"}, [], None),
        ({}, 5, {"metadata": []}),
        ({}, 5, [5]),
    ],
)
def test_answers_of_another_form(
    server: Any, tmp_path: Path, outputs: Any, rows: Any, metadata: Any
) -> None:
    url, answers = server
    answers.outputs, answers.rows, answers.metadata = outputs, rows, metadata
    (tmp_path / "x.jpg").write_bytes(b"x")
    done = CliRunner().invoke(app, ["client", url, str(tmp_path / "x.jpg")])
    assert isinstance(done.exception, RequestError), done.exception
    assert url in str(done.exception)
