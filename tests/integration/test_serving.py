"""The server as a program: other people's client, new versions, an orderly end, abuse."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from threading import Thread

import httpx
import numpy as np
import pytest
from typer.testing import CliRunner

import served_model
from served_model import png, serving
from towerpack import ConfigError, RequestError
from towerpack.cli import app as cli
from towerpack.serving import Client
from warm_python import warm_python

SECONDS = float(os.environ.get("TOWERPACK_ABUSE_S", "2"))
CLIENTS = 64


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three versions; a test copies what it serves."""
    folder = tmp_path_factory.mktemp("versions")
    served_model.export(folder, 1)
    served_model.export(folder, 2, shift=9.0)
    return folder


def version_of(url: str) -> str:
    return httpx.get(f"{url}/readyz").text


def wait_for(what: str, url: str) -> None:
    deadline = time.monotonic() + 30
    while version_of(url) != what:
        assert time.monotonic() < deadline, f"{version_of(url)}, not {what}"
        time.sleep(0.05)


def test_from_start_to_end(exported: Path, tmp_path: Path) -> None:
    folder = tmp_path / "light"
    shutil.copytree(exported / "1", folder / "1")
    images = np.random.default_rng(0).integers(0, 255, (5, 8, 8, 3), np.uint8)
    with serving(folder, "--token", "secret") as (url, process), Client(url, token="secret") as own:
        with pytest.raises(RequestError, match="401") as caught, Client(url) as stranger:
            stranger.status()
        assert caught.value.status == 401
        _check(own, images, 0.0)
        # A version that is being written, a broken one, and then a good one that is renamed.
        shutil.copytree(exported / "2", folder / ".5.part")
        shutil.copytree(exported / "2" / "variables", folder / "4" / "variables")
        (folder / "4" / "saved_model.pb").write_bytes(b"rubbish")
        shutil.copytree(exported / "2", folder / ".part")
        (folder / ".part").rename(folder / "3")
        while version_of(url) != "version 3":
            _check(own, images, None)
        _check(own, images, 9.0)
        states = {s["version"]: s["state"] for s in own.status()["model_version_status"]}
        assert states == {"3": "AVAILABLE", "4": "END"}
        shutil.rmtree(folder / "3")
        wait_for("version 1", url)
        _check(own, images, 0.0)
        _end(url, process)


def _check(client: Client, images: np.ndarray, shift: float | None) -> None:
    by_name = client.predict({"image": images}, "tensors")
    alone = client.predict(images, "tensors")
    assert alone["class_ids"].dtype == np.int64
    assert alone["probabilities"].dtype == np.float32
    if shift is None:  # a new version may come between the two
        return
    expected = served_model.probabilities(images, shift)
    for found in (by_name, alone):
        np.testing.assert_allclose(found["probabilities"], expected, atol=1e-5)
    assert client.predict(png(9, 9, 0))["classes"] == ([b"dark"] if not shift else [b"bright"])
    with pytest.raises(ConfigError, match="must be arrays by name"):
        client.predict("no/such/file.png")


# The limits as arguments of a program of one line: connections, seconds, files, folder.
LIMITED = """
import resource, sys
if sys.argv[6] != "httptools":  # uvicorn then parses requests with h11
    sys.modules["httptools"] = None
from towerpack.serving import Limits, serve
connections, seconds, files = (int(text) for text in sys.argv[2:5])
resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
serve(sys.argv[5], name="light", port=0, limits=Limits(connections=connections, request_s=seconds),
      ready=lambda url: print(f"at {url}/ ", flush=True))
"""


@contextlib.contextmanager
def limited(
    folder: Path, connections: int, seconds: int, files: int, parser: str = "httptools"
) -> Iterator[tuple[str, int]]:
    options = map(str, (connections, seconds, files, folder, parser))
    command = [*warm_python(), "-c", LIMITED, "serve", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[1].rstrip("/")
            yield url, int(url.rpartition(":")[2])
        finally:
            process.kill()


BEGUN = b"POST /v1/models/light:predict HTTP/1.1\r\nhost: x\r\n"


CHUNKED = b"GET /readyz HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n"
ENDLESS = {
    "header": (BEGUN + b"x-long: ", b"x" * 10_000),
    "trailers": (CHUNKED, b"x-long: " + b"x" * 10_000 + b"\r\n"),
    "requests": (b"", b"GET /readyz HTTP/1.1\r\nhost: x\r\n\r\n" * 1000),  # nobody reads answers
}


@pytest.mark.parametrize(
    ("kind", "parser"),
    [*itertools.product(("header", "trailers"), ("httptools", "h11")), ("requests", "httptools")],
)
def test_what_has_no_end_is_not_kept(exported: Path, kind: str, parser: str) -> None:
    begin, more = ENDLESS[kind]
    with (
        limited(exported, 10, 60, 256, parser) as (url, port),
        socket.create_connection(("127.0.0.1", port), timeout=20) as client,
    ):
        sent = 0
        with pytest.raises(OSError, match=r"reset|[Bb]roken"):
            client.sendall(begin)
            while sent < 100 << 20:
                client.sendall(more)
                sent += len(more)
        assert sent < 20 << 20  # what the kernels hold
        assert version_of(url).startswith("version")


SILENCES = {
    "nothing": b"",
    "half of the headers": BEGUN,
    "no body": BEGUN + b"content-length: 9\r\n\r\n",
    "a request, and no more": b"GET /readyz HTTP/1.1\r\nhost: x\r\n\r\n",
}


@pytest.mark.parametrize(("connections", "files"), [(100, 2000), (1000, 256)])
def test_idle_connections_shut_nobody_out(exported: Path, connections: int, files: int) -> None:
    with limited(exported, connections, 60, files) as (url, port), contextlib.ExitStack() as opened:
        good = opened.enter_context(httpx.Client(base_url=url, timeout=20))
        for number in range(300):
            client = opened.enter_context(socket.create_connection(("127.0.0.1", port)))
            client.sendall(list(SILENCES.values())[number % len(SILENCES)])
            if number % 20 == 0:
                assert good.get("/readyz").text == "version 2"
        assert httpx.get(f"{url}/readyz", timeout=20).text == "version 2"


@pytest.mark.parametrize("parser", ["httptools", "h11"])
@pytest.mark.parametrize("name", ["nothing", "half of the headers"])
def test_a_connection_without_a_request_is_closed_in_time(
    exported: Path, name: str, parser: str
) -> None:
    with limited(exported, 1000, 1, 2000, parser) as (url, port):
        with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
            client.sendall(SILENCES[name])
            began = time.monotonic()
            with contextlib.suppress(ConnectionResetError):
                assert client.recv(1) == b""
            assert 0.5 < time.monotonic() - began < 15
        with httpx.Client(base_url=url) as good:  # a request that is answered may take longer
            for _ in range(2):
                assert good.get("/readyz").text == "version 2"
                time.sleep(1.5)
            assert good.get("/readyz").text == "version 2"


ROWS = 500_000


def ask_without_reading(port: int, rows: int) -> socket.socket:
    """Send a request whose response is 20 times larger, to a server that then waits to send it."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(20)
    client.connect(("127.0.0.1", port))
    body = b'{"signature_name":"whole","inputs":%d}' % rows
    begun = BEGUN.replace(b"host: x", b"host: localhost")
    client.sendall(begun + b"content-length: %d\r\n\r\n" % len(body) + body)
    return client


@pytest.mark.parametrize("parser", ["httptools", "h11"])
def test_a_client_that_reads_nothing_is_closed_in_time(exported: Path, parser: str) -> None:
    with (
        limited(exported, 3, 1, 2000, parser) as (_, port),
        contextlib.ExitStack() as opened,
    ):
        slow, *stuck = [opened.enter_context(ask_without_reading(port, ROWS)) for _ in range(3)]
        began, size = time.monotonic(), 0
        while size < 6 * ROWS:  # digits
            size += len(slow.recv(1 << 20))
            time.sleep(0.05 if time.monotonic() - began < 4 else 0)
        assert time.monotonic() - began > 4
        for client in stuck:
            with contextlib.suppress(ConnectionResetError):
                read = partial(client.recv, 1 << 20)
                assert sum(map(len, iter(read, b""))) < 3 * ROWS


def test_clients_that_read_nothing_shut_nobody_out(exported: Path) -> None:
    with limited(exported, 5, 60, 2000) as (url, port), contextlib.ExitStack() as opened:
        for _ in range(12):
            opened.enter_context(ask_without_reading(port, ROWS))
            assert version_of(url) == "version 2"


def test_a_request_of_many_rows_stalls_no_other(exported: Path) -> None:
    """Two million rows of a wrong size: what is parsed is not looked at again and again."""
    many = b'{"signature_name":"tensors","instances":[[1,1]' + b",[1,1]" * 1_999_999 + b"]}"
    answers: list[httpx.Response] = []
    worst: list[float] = []
    with serving(exported, "--name", "light") as (url, _), httpx.Client(base_url=url) as other:
        path = f"{url}/v1/models/light:predict"
        for _ in range(4):  # other programs of the machine may hold up one of them
            asking = Thread(
                target=lambda: answers.append(httpx.post(path, content=many, timeout=60))
            )
            asking.start()
            stalls: list[float] = []
            while asking.is_alive():
                stalls.append(other.get("/healthz", timeout=60).elapsed.total_seconds())
                time.sleep(0.01)
            worst.append(max(stalls))
            if worst[-1] < 1:
                break
    assert "wrong dtype or shape" in answers[0].text
    assert min(worst) < 1


def test_a_recipe_stands_for_its_run(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "runs" / "light"
    (run / "checkpoints").mkdir(parents=True)
    recipes = [tmp_path / "light.yaml", run / "recipe.yaml", tmp_path / "light" / "recipe.yaml"]
    for recipe in recipes:
        recipe.parent.mkdir(exist_ok=True)
        recipe.write_text("task: classification")
    for given in ("runs/light", *recipes):
        with pytest.raises(ConfigError, match=r"must be exported(?s:.*)towerpack export"):
            CliRunner().invoke(cli, ["serve", str(given)], catch_exceptions=False)
    with pytest.raises(ConfigError, match="There is no recipe"):
        CliRunner().invoke(cli, ["serve", "other.yaml"], catch_exceptions=False)
    shutil.copytree(exported, run / "export" / "saved_model")
    for recipe in recipes:
        with serving(recipe) as (url, _):
            assert httpx.get(f"{url}/v1/models").json() == {"models": [{"name": "light"}]}


def _end(url: str, process: subprocess.Popen[str]) -> None:
    """Stop it while a request is on its way: that one is answered."""
    host, port = url.removeprefix("http://").split(":")

    async def stop_within_a_request() -> bytes:
        reader, writer = await asyncio.open_connection(host, int(port))
        body = b'{"signature_name": "whole", "inputs": 3}'
        writer.write(b"POST /v1/models/light:predict HTTP/1.1\r\nhost: x\r\n")
        writer.write(b"authorization: Bearer secret\r\ncontent-length: %d\r\n\r\n" % len(body))
        await writer.drain()
        await asyncio.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.5)
        writer.write(body)
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        return answer

    answer = asyncio.run(stop_within_a_request())
    assert answer.startswith(b"HTTP/1.1 200"), answer
    assert process.wait(20) == 0
    assert process.stderr is not None
    said = process.stderr.read()
    assert "Traceback" not in said
    assert len(said.splitlines()) < 10, said


def test_a_client_that_others_wrote(exported: Path) -> None:
    ovms = pytest.importorskip("ovmsclient")
    with serving(exported, "--name", "light") as (url, _):
        client = ovms.make_http_client(url.removeprefix("http://"))
        assert client.get_model_status("light") == {
            2: {"state": "AVAILABLE", "error_code": 0, "error_message": ""}
        }
        assert client.get_model_metadata("light", 2)["model_spec"]["version"] == "2"
        found = client.predict({"image_bytes": [png(9, 9, 200), png(9, 9, 0)]}, "light")
        expected = served_model.probabilities(np.array([200, 0]).reshape(2, 1, 1, 1), 9.0)
        np.testing.assert_allclose(found["probabilities"], expected, atol=1e-5)
        with pytest.raises(ovms.ModelNotFoundError, match="Servable not found"):
            client.predict({"image_bytes": [b""]}, "other")
        files = [exported.parent / f"{value}.png" for value in (255, 0)]
        for path, value in zip(files, (255, 0), strict=True):
            path.write_bytes(png(20, 20, value))
        done = subprocess.run(
            [*warm_python(), "-m", "towerpack", "client", url, *map(str, files)],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        rows = [line.split() for line in done.stdout.splitlines() if ".png" in line]
        assert [row[1] for row in rows] == ["bright", "bright"]


# What is started stands in for the server, whose memory is looked at.
SAYS_WHO = "import os; from towerpack.cli import main; os.write(2, b'%d\\n' % os.getpid()); main()"


def memory_mb(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+)", text)[0]) / 1024


CUT = png(300, 300, 9)[:-50]
# Bodies of abuse with the statuses that they may have.
ABUSE = {
    "wrong JSON": (b'{"instances": [', {400}),
    "wrong shape": (b'{"signature_name": "tensors", "instances": [[1, 2], [3, 4]]}', {400}),
    "too large": (bytes(100_000_000), {413}),
    "truncated": (CUT, {400}),
    "bomb": (b"", {400}),
}


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_abuse_by_64_clients(exported: Path) -> None:
    """TOWERPACK_ABUSE_S=60 runs it as long as its report in LOG.md did."""
    answers: Counter[tuple[str, int]] = Counter()
    wrong: list[str] = []
    kinds = list(ABUSE)  # each at least once
    bomb = png(10_000, 6_000, 0)

    async def client(http: httpx.AsyncClient, rng: random.Random, deadline: float) -> None:
        pictures = {"content-type": "image/png"}
        while time.monotonic() < deadline:
            if kinds or rng.random() < 0.2:
                kind = kinds.pop() if kinds else rng.choice(list(ABUSE))
                body, allowed = ABUSE[kind]
                body = body or bomb
                headers = pictures if kind in ("truncated", "bomb") else {}
            else:
                kind, value, allowed, headers = "good", rng.randrange(256), {200, 429}, pictures
                body = png(rng.randrange(8, 60), 20, value)
            try:
                answer = await http.post("/v1/models/light:predict", content=body, headers=headers)
            except (httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError):
                assert kind == "too large"  # the server need not read on
                answers[kind, 0] += 1
                continue
            answers[kind, answer.status_code] += 1
            if answer.status_code not in allowed:
                wrong.append(f"{kind}: {answer.status_code} {answer.text[:200]}")
            elif answer.status_code == 200:
                found = answer.json()["predictions"][0]["probabilities"]
                expected = served_model.probabilities(np.full((1, 1, 1, 1), value), 9.0)[0]
                if not np.allclose(found, expected, atol=1e-5):
                    wrong.append(f"{value}: {found}, not {expected}")

    async def all_clients(url: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        limits = httpx.Limits(max_connections=CLIENTS)
        async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as http:
            await asyncio.gather(
                *[client(http, random.Random(seed), deadline) for seed in range(CLIENTS)]
            )

    with serving(exported, "--name", "light", program=["-c", SAYS_WHO]) as (url, process):
        assert process.stderr is not None
        pid = int(process.stderr.readline())
        asyncio.run(all_clients(url, SECONDS / 2))
        before = memory_mb(pid)
        asyncio.run(all_clients(url, SECONDS / 2))
        after = memory_mb(pid)
        metrics = httpx.get(f"{url}/metrics").text
    print(f"\n{SECONDS} s: {dict(sorted(answers.items()))}, {before:.0f} -> {after:.0f} MB")
    assert not wrong, wrong[:5]
    assert 'status="5' not in metrics
    assert {kind for kind, _ in answers} == {"good", *ABUSE}
    assert answers["good", 200] > CLIENTS
    assert after < before + 60, "memory grows"
