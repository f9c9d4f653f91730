"""The protocol of TensorFlow Serving over a real SavedModel, request by request."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
import shutil
import struct
import weakref
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any, cast

import httpx
import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from starlette.responses import Response

import served_model
from encoded_pictures import ENCODINGS
from served_model import png
from towerpack import ConfigError, FormatError, ModelDesc, RequestError, inference
from towerpack.checkpoint import CheckpointStore
from towerpack.dataflow.images import decode_image
from towerpack.nn import expose
from towerpack.ops.picture_files import picture_of
from towerpack.serving import Client, Limits, _batcher, create_app
from towerpack.serving._batcher import Batcher
from towerpack.serving._protocol import Call
from towerpack.serving.gate import Gate, Metrics
from towerpack.tower import TowerFunction

ENCODED = "This model cannot read the image: "
BRIGHT, DARK = png(20, 30, 250), png(5, 9, 10)
PREDICT = "/v1/models/light:predict"


def b64(data: bytes) -> dict[str, str]:
    return {"b64": base64.b64encode(data).decode()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    served_model.export(folder)
    return folder


class Server:
    """Sends requests to the application without a network; those of one call all at once."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self._app = create_app(folder, name="light", **options)

    def send(self, *requests: httpx.Request) -> list[httpx.Response]:
        async def send_all() -> list[httpx.Response]:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(self._app)) as client:
                return await asyncio.gather(*map(client.send, requests))

        return asyncio.run(send_all())

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self.send(httpx.Request("GET", f"http://x{path}", **more))[0]

    def post(self, path: str, **more: Any) -> httpx.Response:
        return self.send(post(path, **more))[0]


async def stays() -> bool:
    return False


GIF = {"content-type": "image/gif"}


def post(path: str, **more: Any) -> httpx.Request:
    return httpx.Request("POST", f"http://x{path}", **more)


@pytest.fixture(scope="module")
def server(folder: Path) -> Server:
    return Server(folder, limits=Limits(batch=4, body_bytes=100_000, pixels=10_000))


def pair(**more: Any) -> dict[str, Any]:
    return {"signature_name": "pair", **more}


ANSWERS = {
    "row": (
        pair(instances=[{"a": [1, 2.5], "b": "x"}, {"a": [3, 4], "b": b64(b"\xff")}]),
        {
            "predictions": [
                {"half": [0.5, 1.25], "same_bytes": b64(b"x")},
                {"half": [1.5, 2.0], "same_bytes": b64(b"\xff")},
            ]
        },
    ),
    "column": (
        pair(inputs={"a": [[1, 2]], "b": ["é"]}),
        {"outputs": {"half": [[0.5, 1.0]], "same_bytes": [b64("é".encode())]}},
    ),
    "not finite": (
        '{"signature_name":"pair","inputs":{"a":[[NaN,-Infinity],[Infinity,3]],"b":["",""]}}',
        '{"outputs":{"half":[[NaN,-Infinity],[Infinity,1.5]],"same_bytes":[{"b64":""},{"b64":""}]}}',
    ),
    "one input without its name, one output without its": (
        {"signature_name": "whole", "inputs": 3},
        {"outputs": [0, 1, 2]},
    ),
    "more rows than a batch": (
        pair(inputs={"a": [[n, n] for n in range(11)], "b": ["x"] * 11}),
        {"outputs": {"half": [[n / 2, n / 2] for n in range(11)], "same_bytes": [b64(b"x")] * 11}},
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_answers(server: Server, name: str) -> None:
    body, expected = ANSWERS[name]
    body = body if isinstance(body, str) else json.dumps(body)
    expected = expected if isinstance(expected, str) else json.dumps(expected)
    for version in ("", "/versions/1", "/versions/0"):
        answer = server.post(f"/v1/models/light{version}:predict", content=body)
        assert answer.status_code == 200, answer.text
        # As text, so that NaN equals NaN; keys may come in any order.
        assert repr(json.loads(answer.text, object_pairs_hook=sorted)) == repr(
            json.loads(expected, object_pairs_hook=sorted)
        )


CUT = BRIGHT[:-20]
HUGE = BRIGHT[:16] + struct.pack(">II", 30_000, 30_000) + BRIGHT[24:]
BAD = {
    b"": "JSON Parse error",
    b"{": "JSON Parse error",
    b'{"inputs": NaN': "JSON Parse error",
    b"[" * 50_000: "JSON Parse error",
    b"\xff\xfe": "JSON Parse error",
    BRIGHT: "Send an image with --data-binary",
    BRIGHT.replace(b"\r", b"").replace(b"\n", b""): "Send an image with --data-binary",
    b"[]": "Is not object",
    b"{}": "Missing 'inputs' or 'instances' key",
    b'{"inputs": 1, "instances": [1]}': "or both are present",
    b'{"instances": 1}': "to be a list with values",
    b'{"instances": []}': "to be a list with values",
    b'{"signature_name": 5, "inputs": 1}': "not found",
    b'{"signature_name": "no", "inputs": 1}': 'signature name: "no" not found',
    json.dumps(pair(instances=[1])).encode(): "keys must be equal to: a,b",
    json.dumps(pair(inputs={"a": [[1, 2]]})).encode(): "keys must be equal to: a,b",
    json.dumps(pair(instances=[{"a": [1, 2], "b": ""}, {"a": [1, 2]}])).encode(): "element: 1",
    json.dumps({"instances": [b64(CUT)]}).encode(): "cut off",
    json.dumps({"instances": [b64(HUGE)]}).encode(): "too large",
    json.dumps({"instances": ["text"]}).encode(): "is not an image file",
    json.dumps({"instances": [{"b64": "###"}]}).encode(): "base64",
    json.dumps({"instances": [{"b64": 3}]}).encode(): "b64",
    json.dumps({"inputs": b64(BRIGHT)}).encode(): "got object [] expected string [n]",
    b'{"inputs": ' + b"[" * 50 + b'"x"' + b"]" * 50 + b"}": "dimensions",
    b'{"signature_name": "whole", "inputs": -3}': "The model refused the values",
    b'{"signature_name": "whole", "inputs": 1.0}': "float is not of expected type: int32",
    b'{"signature_name": "whole", "inputs": 3000000000}': "out of bounds",
} | {
    json.dumps(pair(inputs={"a": a, "b": b})).encode(): text
    for a, b, text in [
        ([["1", "2"]], [""], "str is not of expected type: float32"),
        ([[True, 2]], [""], "bool is not of expected type: float32"),
        ([[None, 2]], [""], "NoneType is not"),
        ([[1e300, 2]], [""], "overflow"),
        ([[10**400, 2]], [""], "JSON Parse error"),
        ([[1, 2], [3]], [""], "inhomogeneous"),
        ([[1, 2], 3], [""], "inhomogeneous"),
        ([[1, 2, 3]], [""], "got float32 [1, 3] expected float32 [n, 2]"),
        ([], [], "got float32 [0] expected float32 [n, 2]"),
        ([[1, 2]], ["", ""], "the same number of rows"),
        ([[1, 2]], [1], "int is not of expected type: string"),
        ([[1, 2]], [[""], []], "lists of one size"),
    ]
}


@pytest.mark.parametrize("body", BAD, ids=lambda body: body[:60].decode(errors="replace"))
def test_bad_bodies_are_told_what_is_wrong(server: Server, body: bytes) -> None:
    answer = server.post(PREDICT, content=body)
    assert answer.status_code == 400, answer.text
    assert BAD[body] in answer.json()["error"]


class Tokens(ModelDesc):
    """A classifier of texts of 4 tokens."""

    def __init__(self) -> None:
        self.embedding = keras.layers.Embedding(5, 3)

    def inputs(self) -> list[tf.TensorSpec]:
        return [tf.TensorSpec([None, 4], tf.int32, "words")]

    def build_graph(self, words: tf.Tensor) -> tf.Tensor:
        probabilities = tf.nn.softmax(tf.reduce_mean(self.embedding(words), 1))
        expose("prob", probabilities)
        return tf.reduce_mean(probabilities)


@pytest.mark.parametrize("form", ["saved_model", "onnx", "litert", "keras"])
def test_a_classifier_of_every_format_answers(form: str, tmp_path: Path) -> None:
    tower = TowerFunction(Tokens().build_graph, Tokens().inputs())
    tower.trace(is_training=True)
    with CheckpointStore(tmp_path / "run" / "checkpoints") as store:
        values = {name: v.numpy() for name, v in tower.store.named_variables().items()}
        store.save(1, {"model": values, "optimizer": {}}, {})
    names = ["a", "b", "c"]
    inference.export(
        Tokens(), tmp_path / "run", tmp_path / "out", format=form, outputs="prob", class_names=names
    )
    server = Server(tmp_path / "out")
    words = np.array([[0, 1, 2, 3], [4, 4, 4, 4]], np.int32)
    asked: dict[str, Any] = {"signature_name": "tensors"}
    by_row = server.post(PREDICT, json={**asked, "instances": words.tolist()})
    by_column = server.post(PREDICT, json={**asked, "inputs": words.tolist()})
    assert (by_row.status_code, by_column.status_code) == (200, 200), by_row.text
    columns = by_column.json()["outputs"]
    rows = by_row.json()["predictions"]
    assert rows == [{key: columns[key][row] for key in columns} for row in range(2)]
    assert [row["class_ids"] for row in rows] == np.argmax(columns["probabilities"], 1).tolist()
    for body in ({"instances": []}, {"inputs": []}, {"instances": [[0, 0, 0, 99]]}):
        assert server.post(PREDICT, json={**asked, **body}).status_code == 400
    mixed = server.post(PREDICT, json={**asked, "instances": [[0, 0, 0, 99], *words.tolist()]})
    bad, *others = mixed.json()["predictions"]
    assert list(bad) == ["error"] and "refused the values" in bad["error"]
    assert [row["class_ids"] for row in others] == [row["class_ids"] for row in rows]
    kind = {"content-type": "application/octet-stream"}
    nothing = server.post(f"{PREDICT}?signature_name=tensors", content=b"", headers=kind)
    assert nothing.json() == {"predictions": []}


def test_rows_of_a_client_that_has_gone_are_not_computed(folder: Path) -> None:
    app = create_app(folder, name="light", limits=Limits(batch=4))
    body = json.dumps(pair(inputs={"a": [[1, 2]] * 400, "b": ["x"] * 400})).encode()
    messages = iter([{"type": "http.request", "body": body}])

    async def receive() -> Any:
        return next(messages, {"type": "http.disconnect"})

    async def send(message: Any) -> None:
        del message

    async def go() -> str:
        head = {"type": "http", "method": "POST", "path": PREDICT, "query_string": b""}
        await app({**head, "headers": []}, receive, send)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app)) as client:
            return (await client.get("http://x/metrics")).text

    rows = re.search(r"towerpack_batch_rows_sum (\S+)", asyncio.run(go()))
    assert rows and float(rows[1]) <= 4


def test_bodies_of_bytes(server: Server) -> None:
    pictures = {"content-type": "image/png"}
    row = server.post(PREDICT, content=BRIGHT, headers=pictures).json()["predictions"][0]
    assert row["classes"] == "bright"
    assert server.post(PREDICT, content=CUT, headers=pictures).status_code == 400
    images = np.random.default_rng(0).integers(0, 255, (3, 8, 8, 3), np.uint8)
    kind = {"content-type": "application/octet-stream"}
    for query, status in [
        ("signature_name=tensors", 200),
        ("signature_name=tensors&shape=3,8,8,3&dtype=uint8", 200),
        ("signature_name=tensors&shape=3,8,8,4", 400),
        ("signature_name=tensors&dtype=float32", 400),
        ("signature_name=tensors&dtype=O", 400),
        ("signature_name=tensors&dtype=,,,,", 400),
        ("signature_name=tensors&shape=x", 400),
        ("signature_name=pair", 400),
    ]:
        answer = server.post(f"{PREDICT}?{query}", content=images.tobytes(), headers=kind)
        assert answer.status_code == status, (query, answer.text)
        if status == 200:
            found = [row["probabilities"] for row in answer.json()["predictions"]]
            np.testing.assert_allclose(found, served_model.probabilities(images), atol=1e-5)


def test_a_query_cannot_ask_for_more_rows_than_it_brings(tmp_path: Path) -> None:
    class Model(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None, None], tf.float32, "x")])
        def call(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"sum": tf.reduce_sum(x, 1)}

    model = Model()
    tf.saved_model.save(model, str(tmp_path / "out" / "1"), {"serving_default": model.call})
    (tmp_path / "out" / "1" / "towerpack.json").write_text('{"format": "saved_model"}')
    server = Server(tmp_path / "out")
    kind = {"content-type": "application/octet-stream"}
    for shape in ("1000000000000,0", "9,0", "0,1000000000000"):
        answer = server.post(f"{PREDICT}?shape={shape}", content=b"", headers=kind)
        assert (answer.status_code, "too large for a body of 0 bytes" in answer.text) == (400, True)
    deep = b'{"instances": ' + b"[" * 900 + b"]" * 900 + b"}"
    assert server.post(PREDICT, content=deep).status_code == 400


def test_a_request_of_many_rows_lets_others_pass(folder: Path) -> None:
    server = Server(folder, limits=Limits(batch=2))
    images = np.zeros([2000, 8, 8, 3], np.uint8)
    kind = {"content-type": "application/octet-stream"}
    many = post(f"{PREDICT}?signature_name=tensors", content=images.tobytes(), headers=kind)
    few = post(f"{PREDICT}?signature_name=tensors", content=images[:1].tobytes(), headers=kind)
    seconds = [answer.elapsed.total_seconds() for answer in server.send(many, *[few] * 8)]
    assert max(seconds[1:]) < seconds[0] / 4


@tf.function(input_signature=[tf.TensorSpec([None], tf.string, "image_bytes")], autograph=False)
def as_png(image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
    """What a graph that reads pictures' files makes of them."""
    text = tf.TensorSpec([], tf.string)
    read = lambda file: tf.io.encode_png(picture_of(file))  # noqa: E731
    return {"picture_bytes": tf.map_fn(read, image_bytes, fn_output_signature=text)}


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Server:
    """A server of a model that gives the pixels of files."""
    module = tf.Module()
    folder = tmp_path_factory.mktemp("reader")
    tf.saved_model.save(module, str(folder / "1"), {"serving_default": as_png})
    return Server(folder, limits=Limits(batch=8, pixels=10_000))


def test_bad_pictures_are_refused_row_by_row(reader: Server) -> None:
    """By the server or by the graph; the others are answered."""
    broken = bytearray(BRIGHT)
    broken[45] ^= 0xFF
    bad = {
        CUT: "cut off",
        HUGE: "too large",
        b"text": "is not an image file",
        bytes(broken): "refused",
    }
    files = [encoding.data for encoding in ENCODINGS.values()]
    asked = [*bad, *files, *bad]
    answer = reader.post(PREDICT, json={"instances": [b64(data) for data in asked]})
    assert answer.status_code == 200
    rows = answer.json()["predictions"]
    told = [*bad.values(), *(None if e.in_graphs else ENCODED for e in ENCODINGS.values())]
    for data, reason, row in zip(asked, [*told, *bad.values()], rows, strict=True):
        if reason is not None:
            assert list(row) == ["error"] and reason in row["error"]
            assert "node" not in row["error"] and "most recent call" not in row["error"]
            continue
        found = tf.io.decode_png(base64.b64decode(row["b64"])).numpy()
        assert np.abs(found - decode_image(data).astype(int)).max() <= 2


def test_a_request_of_bad_pictures_alone_is_refused(reader: Server) -> None:
    tiff, good = ENCODINGS["TIFF, rgb"].data, ENCODINGS["PNG, rgb"].data
    for body, words in (
        ({"instances": [b64(tiff)]}, ENCODED),
        ({"instances": [b64(tiff), b64(tiff)]}, ENCODED),
        ({"instances": [b64(CUT), b64(CUT)]}, "cut off"),
        ({"instances": [b64(CUT), b64(tiff)]}, ENCODED),
        ({"inputs": [b64(good), b64(CUT)]}, "Row 1: The image is cut off"),
        ({"inputs": [b64(good), b64(tiff)]}, ENCODED),
    ):
        answer = reader.post(PREDICT, json=body)
        assert answer.status_code == 400 and words in answer.json()["error"]
    kind = {"content-type": "image/tiff"}
    answer = reader.post(PREDICT, content=tiff, headers=kind)
    assert answer.status_code == 400 and ENCODED in answer.json()["error"]


def animated(frames: int) -> bytes:
    pictures = [Image.fromarray(np.full([100, 90], i, np.uint8)) for i in range(frames)]
    file = io.BytesIO()
    pictures[0].save(file, "GIF", save_all=True, append_images=pictures[1:], duration=9)
    return file.getvalue()


def test_a_jpeg_of_hundreds_of_scans_is_refused(reader: Server) -> None:
    """A decoder reads each for all pixels, however short it is."""
    file = io.BytesIO()
    Image.new("RGB", (32, 32)).save(file, "JPEG", progressive=True)
    data = file.getvalue()
    last = data.rindex(b"\xff\xda")
    many = data[:last] + data[last:-2] * 200 + data[-2:]
    answer = reader.post(PREDICT, json={"instances": [b64(many)]})
    assert (answer.status_code, "scans" in answer.text) == (400, True)
    assert reader.post(PREDICT, json={"instances": [b64(data)]}).status_code == 200


def test_pictures_are_limited_together_with_all_their_frames(reader: Server, folder: Path) -> None:
    small = Server(folder, limits=Limits(pixels=10_000, request_pixels=30_000))
    one = png(90, 100, 0)  # 9,000 pixels
    assert small.post(PREDICT, json={"instances": [b64(one)] * 3}).status_code == 200
    answer = small.post(PREDICT, json={"instances": [b64(one)] * 4})
    assert (answer.status_code, "at most 30000 pixels, got 36000" in answer.text) == (400, True)
    assert reader.post(PREDICT, json={"instances": [b64(animated(1))]}).status_code == 200
    answer = reader.post(PREDICT, json={"instances": [b64(animated(2))]})
    assert (answer.status_code, "2 frames" in answer.text) == (400, True)
    text = {"signature_name": "pair", "inputs": {"a": [[1, 2]], "b": ["BMW builds cars in Munich"]}}
    assert small.post(PREDICT, json=text).status_code == 200
    # A decoder makes all frames as large as the largest one, whatever the screen.
    larger = animated(2)
    at = larger.rindex(b",\0\0\0\0") + 5
    larger = larger[:at] + struct.pack("<HH", 20_000, 10_000) + larger[at + 4 :]
    wide = Server(folder, limits=Limits(pixels=20_000)).post(PREDICT, content=larger, headers=GIF)
    assert (wide.status_code, "10000 x 20000 pixels" in wide.text) == (400, True)
    for cut in (animated(2)[:10], animated(2)[:12], animated(2)[:40]):
        assert reader.post(PREDICT, json={"instances": [b64(cut)]}).status_code == 400
    hidden = {"signature_name": "pair", "inputs": {"a": [[1, 2]], "b": [b64(png(200, 200, 0))]}}
    assert "too large" in small.post(PREDICT, json=hidden).text  # whatever the input is called


def test_what_is_refused_by_its_size_or_path(server: Server) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(50):
            yield b" " * 10_000

    for content in (b" " * 200_000, chunks()):
        assert server.post(PREDICT, content=content).status_code == 413
    packed = {"content-encoding": "gzip"}
    assert server.post(PREDICT, content=zlib.compress(b""), headers=packed).status_code == 415
    for path in ("/v1/models/no", "/v1/models/light/versions/2", "/no", "/v1/models/light/no"):
        answer = server.get(path)
        assert (answer.status_code, list(answer.json())) == (404, ["error"])
    assert server.get("/v1/models/light:predict").status_code in (404, 405)


def test_numbers_of_thousands_of_digits_are_no_failure(server: Server) -> None:
    number = "7" * 5000
    model = f"/v1/models/light/versions/{number}"
    answers = [server.get(model), server.get(f"{model}/metadata")]
    answers.append(server.post(f"{model}:predict", json={"inputs": 1}))
    assert {answer.status_code for answer in answers} == {404}
    answer = server.post(PREDICT, content=b"{}", headers={"content-length": number})
    assert answer.status_code == 413
    for length in ("abc", "-1", "", "1e9"):
        headers = {"content-length": length}
        assert server.post(PREDICT, content=b"{}", headers=headers).status_code == 400
    tensors = "signature_name=tensors"
    for query in (f"{tensors}&shape={number}", f"{tensors}&dtype={number}", f"{tensors}{number}"):
        kind = {"content-type": "application/octet-stream"}
        assert server.post(f"{PREDICT}?{query}", content=b"", headers=kind).is_client_error


def test_status_metadata_health_and_metrics(server: Server) -> None:
    (state,) = server.get("/v1/models/light").json()["model_version_status"]
    told = {"error_code": "OK", "error_message": ""}
    assert state == {"version": "1", "state": "AVAILABLE", "status": told}
    found = server.get("/v1/models/light/versions/1/metadata").json()
    assert found["model_spec"] == {"name": "light", "version": "1"}
    inputs = found["metadata"]["signature_def"]["signature_def"]["tensors"]["inputs"]
    sizes = [{"size": size, "name": ""} for size in ("-1", "8", "8", "3")]
    shape = {"dim": sizes}
    assert inputs == {"image": {"dtype": "DT_UINT8", "tensor_shape": shape, "name": "image"}}
    assert found["metadata"]["towerpack"]["class_names"] == served_model.CLASSES
    for path in ("/healthz", "/readyz", "/"):
        assert server.get(path).status_code == 200
    assert "http" not in server.get("/").text  # nothing from another host
    assert 'towerpack_requests_total{kind="other",status="200"}' in server.get("/metrics").text


def test_token(folder: Path) -> None:
    client = Server(folder, token="ä secret")
    for path in ("/v1/models/light", "/metrics", "/openapi.json"):
        assert client.get(path).status_code == 401
    assert client.post(PREDICT, headers={"authorization": "Bearer no"}).status_code == 401
    assert client.get("/healthz").status_code == client.get("/").status_code == 200
    right = {"authorization": "Bearer ä secret".encode()}
    assert client.get("/v1/models/light", headers=right).status_code == 200
    for empty in ("", " "):
        with pytest.raises(ConfigError, match="token must be printable, not empty"):
            create_app(folder, token=empty)
    for token in ("secret\n", " secret", "secret\udcff", "a\x7fb"):
        with pytest.raises(ConfigError, match="must be printable"):
            create_app(folder, token=token)
    with Client("http://127.0.0.1:1", "light", token="ä secret") as lone:
        with pytest.raises(RequestError, match="did not answer"):
            lone.status()


def test_an_error_does_not_repeat_all_that_came_in(server: Server) -> None:
    for name in ("x" * 90_000, "\ud800"):  # what orjson takes, and what only json takes
        body = json.dumps({"signature_name": name, "of json": float("nan")})
        answer = server.post(PREDICT, content=body)
        assert (answer.status_code, len(answer.content) < 9000) == (400, True)
        assert "not found in" in answer.json()["error"]


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("localhost:8501", None, 200),
        ("127.0.0.1", "http://127.0.0.1", 200),
        ("[::1]:80", "http://[::1]:80", 200),
        ("rebound.example:8501", None, 403),
        ("rebound.example:8501", "http://rebound.example:8501", 403),
        ("127.0.0.1.rebound.example", None, 403),
        ("10.0.0.1", None, 403),
        ("", None, 403),
        (":8501", None, 403),
        ("rebound1", None, 403),
        ("localhost:8501", "https://page.example", 403),
        ("localhost:8501", "http://localhost:9000", 403),
        ("localhost:8501", "null", 403),
    ],
)
def test_a_page_of_another_site_reaches_no_model_of_this_machine(
    folder: Path, host: str, origin: str | None, status: int
) -> None:
    headers = {"host": host} | ({} if origin is None else {"origin": origin})
    assert Server(folder, local=True).get("/v1/models/light", headers=headers).status_code == status
    authorized = {**headers, "authorization": "Bearer secret"}
    with_token = Server(folder, local=True, token="secret")
    assert with_token.get("/v1/models/light", headers=authorized).status_code == 200


def test_a_client_that_leaves_writes_one_line_of_the_log(caplog: Any) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def closed(message: Any) -> None:
        raise RuntimeError("the handler is closed")

    gate = Gate(app, None, Limits(), Metrics(), True)
    asyncio.run(gate({"type": "http", "path": "/", "headers": []}, closed, closed))
    assert "the handler is closed" in caplog.text
    assert len(caplog.text.splitlines()) == 1


def test_a_request_writes_one_line_of_the_log(folder: Path, caplog: Any, monkeypatch: Any) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("it failed")

    monkeypatch.setattr("towerpack.serving._app.call_of", fail)
    answer = Server(folder).post("/v1/models/light%0AINFO%20all is well%1b[31m:predict", json={})
    assert answer.status_code in (404, 500)
    answer = Server(folder).post("/v1/models/light:predict?%0AINFO", json={})
    assert answer.status_code == 500
    assert not {"\n", "\x1b"} & {*"".join(record.getMessage() for record in caplog.records)}


def test_a_batch_holds_what_goes_together_and_a_bad_request_fails_alone(folder: Path) -> None:
    server = Server(folder, limits=Limits(batch=8))
    # The pixels are damaged, which only the model's decoder sees.
    broken = bytearray(BRIGHT)
    broken[45] ^= 0xFF
    bodies = [
        *([(BRIGHT, "", "bright"), (DARK, "", "dark")] * 5),
        (bytes(broken), "", None),
        (bytes(2 * 192), "?signature_name=tensors", [0, 0]),
    ] * 3

    kind = {"content-type": "application/octet-stream"}
    asked = [post(f"{PREDICT}{query}", content=body, headers=kind) for body, query, _ in bodies]
    answers = server.send(*asked)
    for (_, query, expected), answer in zip(bodies, answers, strict=True):
        if expected is None:
            assert answer.status_code == 400
        else:
            rows = answer.json()["predictions"]
            found = [row["class_ids"] for row in rows] if query else rows[0]["classes"]
            assert found == expected
    metrics = server.get("/metrics").text.splitlines()
    (count,) = [line for line in metrics if line.startswith("towerpack_batch_rows_count")]
    assert float(count.split()[1]) <= len(bodies) / 3


def test_the_outputs_of_many_parts_are_joined_beside_the_loop(monkeypatch: Any) -> None:
    """On the loop, 150,000 rows of which some were refused kept all others waiting for 1.1 s."""
    joined: list[tuple[bool, int]] = []
    join = _batcher._joined

    def noted(parts: Any) -> Any:
        joined.append((current_thread() is main_thread(), len(parts)))
        return join(parts)

    class Picky:
        def run(self, inputs: dict[str, np.ndarray], _: str) -> dict[str, np.ndarray]:
            if (inputs["x"] % 31 == 0).any():
                raise ValueError("no")
            return inputs

    async def ask() -> dict[str, np.ndarray]:
        rows = np.arange(320)[:, None]
        call = Call(cast("Any", Picky()), "", {"x": rows}, 320, True, [None] * 320)
        return await Batcher(32, 999, lambda _: None).run(call, stays)

    monkeypatch.setattr(_batcher, "_joined", noted)
    assert len(asyncio.run(ask())["x"]) == 309
    assert (False, 309) in joined and not any(on_loop for on_loop, _ in joined)


def test_refused_rows_hold_nothing_of_their_computation(folder: Path) -> None:
    """Errors with their tracebacks were 50 KB a row."""
    held: weakref.WeakSet[Any] = weakref.WeakSet()
    most = 0

    class Picky:
        def run(self, inputs: dict[str, np.ndarray], _: str) -> dict[str, np.ndarray]:
            nonlocal most
            frame = asyncio.Event()  # Only the traceback holds it.
            held.add(frame)
            most = max(most, len(held))
            if inputs["x"].any():
                raise ValueError("too large")
            return inputs

    rows = np.arange(100)[:, None]
    errors: list[str | None] = [None] * 100
    model: Any = Picky()

    async def ask() -> dict[str, np.ndarray]:
        batcher = Batcher(4, 9, lambda _: None)
        return await batcher.run(Call(model, "", {"x": rows}, 100, True, errors), stays)

    assert asyncio.run(ask())["x"].tolist() == [[0]]
    assert errors == [None, *["The model refused the values: too large"] * 99]
    assert most < 20


def test_what_waits_is_bounded(folder: Path) -> None:
    server = Server(folder, limits=Limits(waiting=3, batch=1))
    kind = {"content-type": "image/png"}
    answers = server.send(*[post(PREDICT, content=DARK, headers=kind) for _ in range(20)])
    assert {answer.status_code for answer in answers} == {200, 429}
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert refused.headers["retry-after"] == "1"


def test_what_a_request_holds_is_free_after_it(folder: Path) -> None:
    """However it ends: a leak of bytes or places would refuse all that come later."""
    size = 30_000
    server = Server(folder, limits=Limits(held_bytes=2 * size, body_bytes=size + 100))
    narrow = Server(folder, limits=Limits(waiting=3, batch=1))
    good = json.dumps(pair(inputs={"a": [[1, 2]], "b": ["x" * (size - 200)]})).encode()
    kind = {"content-type": "image/png"}

    async def too_long() -> AsyncIterator[bytes]:
        for _ in range(4):
            yield b" " * (size // 2)

    async def broken() -> AsyncIterator[bytes]:
        yield b" " * (size // 2)
        raise ConnectionResetError

    def predict(content: Any, **more: Any) -> int:
        return server.post(PREDICT, content=content, **more).status_code

    for turn in range(4):
        assert [predict(good) for _ in range(3)] == [200] * 3, turn
        assert predict(b" " * size) == 400
        assert predict(too_long()) == 413
        assert predict(good, headers=kind) == 400
        assert predict(broken()) == 500
        many = server.send(*[post(PREDICT, content=good) for _ in range(6)])
        assert {answer.status_code for answer in many} == {200, 429}
        many = narrow.send(*[post(PREDICT, content=DARK, headers=kind) for _ in range(9)])
        assert {answer.status_code for answer in many} == {200, 429}
        assert narrow.post(PREDICT, content=DARK, headers=kind).status_code == 200
    assert predict(good) == 200


def test_responses_that_nobody_reads_are_held_too() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await Response(b"x" * 90)(scope, receive, send)

    gate = Gate(app, None, Limits(held_bytes=100), Metrics(), False)

    async def ask(reads: asyncio.Event) -> int:
        status = 0

        async def receive() -> Any:
            return {"type": "http.request", "body": b"x" * 20}

        async def send(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                await reads.wait()

        await gate({"type": "http", "path": "/", "headers": []}, receive, send)
        return status

    async def ask_three_times() -> list[int]:
        later, now = asyncio.Event(), asyncio.Event()
        now.set()
        first = asyncio.create_task(ask(later))
        await asyncio.sleep(0.01)
        second = await ask(now)
        later.set()
        return [await first, second, await ask(now)]

    assert asyncio.run(ask_three_times()) == [200, 429, 200]


def test_an_optional_input_is_there_in_all_instances_or_in_none(tmp_path: Path) -> None:
    served_model.export(tmp_path)
    (tmp_path / "1" / "towerpack.json").write_text('{"optional_inputs": ["b"]}')
    rows = [{"a": [1.0, 2.0], "b": "x"}, {"a": [3.0, 4.0]}]
    answer = Server(tmp_path).post(PREDICT, json={"signature_name": "pair", "instances": rows})
    assert answer.status_code == 400
    assert "All of 'instances' must have the keys " in answer.json()["error"]


@pytest.mark.parametrize(
    "text",
    [
        *("{", "[]", "3", '{"optional_inputs": 5}', "[" * 5000),
        *('{"optional_inputs": [[]]}', '{"signature": []}', '{"task": "\\ud800"}'),
    ],
)
def test_a_version_with_a_damaged_description_is_not_served(tmp_path: Path, text: str) -> None:
    served_model.export(tmp_path, 1)
    second = tmp_path / "2"
    shutil.copytree(tmp_path / "1", second)
    (second / "towerpack.json").write_text(text)
    server = Server(tmp_path)
    assert server.get("/readyz").text == "version 1"
    assert server.post(PREDICT, json={"instances": [b64(BRIGHT)]}).status_code == 200


def test_a_keras_file_with_code_is_refused(tmp_path: Path) -> None:
    layers = [keras.Input([2]), keras.layers.Lambda(lambda x: x + 1, output_shape=(2,))]
    keras.Sequential(layers).save(tmp_path / "model.keras")
    with pytest.raises(FormatError, match=r"model\.keras"):
        inference.load_exported(tmp_path)


@pytest.mark.parametrize("name", ["saved_model.pb", "model.onnx", "model.tflite", "model.keras"])
def test_a_damaged_model_is_refused_in_our_words(name: str, tmp_path: Path) -> None:
    for data in (b"", b"text" * 100, b"\xff" * 1000):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(FormatError, match=re.escape(name)):
            inference.load_exported(tmp_path)


def test_a_directory_without_a_model_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not contain a model that can be served"):
        create_app(tmp_path, name="light")
    with pytest.raises(ConfigError, match=r"or contain / : \? #, got 'a/b'"):
        create_app(tmp_path, name="a/b")


def test_a_client_tells_when_nothing_answers() -> None:
    with Client("http://127.0.0.1:9", "light") as client:
        with pytest.raises(RequestError, match="did not answer") as caught:
            client.status()
    assert caught.value.status == 0
