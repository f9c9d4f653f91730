"""`towerpack serve` beside LitServe and a plain FastAPI handler, over the same SavedModel.

    python benchmarks/serving_peers.py --peers PYTHON [--quick] [--rounds N] [--seconds S]
        [--forms FORM …] [--clients N …] [--out DIR]

LeNet on pictures of 28 × 28. Requests are JPEG files of 160 × 120 pixels, which the model decodes,
raw float32 tensors, or tensors as JSON. Each of 1, 8 and 64 connections asks again when it is
answered. LitServe and FastAPI take files as forms, Towerpack as bodies. The bytes of the files are
the same. All answers must be equal.

PYTHON is an interpreter with LitServe, FastAPI and TensorFlow (`_peers.txt`). Servers take turns;
the others are stopped. The load comes from this process, on the same cores. The table has its share
of one core.

Aims: at least 2 times the requests per second of LitServe at 64 clients, and at least as many at
one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import shlex
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import _measure as measure
import numpy as np
from serving import PICTURES, REPORTS, Server, export, free_port, request_of, towerpack

CONTENDERS = {"towerpack": "**Towerpack**", "litserve": "LitServe", "fastapi": "FastAPI"}
FORMS = {"jpeg": "JPEG files", "raw": "raw tensors", "json": "tensors as JSON"}
CLIENTS = (1, 8, 64)
MAX_BATCH, BATCH_TIMEOUT_S = 32, 0.005
BOUNDARY = "0123456789abcdef"


@dataclass(frozen=True)
class Turn(measure.Turn):
    """What a server did in one turn.

    Attributes:
        p50_ms: Median of the latencies.
        p99_ms: Their 99th percentile.
        load: Processor time of the load divided by the time of the turn.
    """

    p50_ms: float
    p99_ms: float
    load: float


def jpegs() -> list[bytes]:
    """Return smooth random pictures as JPEG files."""
    import cv2

    small = (PICTURES[:, :6, :8, 0] * 255).astype(np.uint8)
    pictures = [cv2.resize(each, (160, 120), interpolation=cv2.INTER_CUBIC) for each in small]
    return [cv2.imencode(".jpg", each)[1].tobytes() for each in pictures]


def requests_of(contender: str, form: str) -> list[bytes]:
    """Return the requests of a form, as the contender takes them."""
    if form == "json":
        bodies = [json.dumps(picture.tolist()).encode() for picture in PICTURES]
        if contender == "towerpack":
            path, text = "/v1/models/lenet:predict", b'{"instances": [%s]}'
        else:
            path, text = "/predict", b'{"image": %s}'
        return [request_of(path, text % body, "application/json") for body in bodies]
    files = jpegs() if form == "jpeg" else [picture.tobytes() for picture in PICTURES]
    if contender == "towerpack":
        name = "files" if form == "jpeg" else "serving_default"
        path = f"/v1/models/lenet:predict?signature_name={name}"
        return [request_of(path, file, "application/octet-stream") for file in files]
    head = 'Content-Disposition: form-data; name="file"; filename="file"'
    start, end = f"--{BOUNDARY}\r\n{head}\r\n\r\n".encode(), f"\r\n--{BOUNDARY}--\r\n".encode()
    kind = f"multipart/form-data; boundary={BOUNDARY}"
    return [request_of("/predict", start + file + end, kind) for file in files]


def start(contender: str, form: str, folder: Path, python: str) -> Server:
    """Start the server of a contender."""
    requests = requests_of(contender, form)
    if contender == "towerpack":
        return towerpack(folder, MAX_BATCH, requests)
    script = Path(__file__).with_name(f"_serving_{contender}.py")
    port, name = free_port(), "files" if form == "jpeg" else "serving_default"
    command = [python, script, "json" if form == "json" else "file", name, folder / "1", port]
    command += [MAX_BATCH, BATCH_TIMEOUT_S] if contender == "litserve" else []
    return Server([*map(str, command)], ("127.0.0.1", port), requests)


@contextlib.contextmanager
def servers(form: str, python: str) -> Iterator[dict[str, Server]]:
    """All servers of a form of requests, stopped."""
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        export(Path(directory))
        started: dict[str, Server] = {}
        for contender in CONTENDERS:
            server = start(contender, form, Path(directory), python)
            started[contender] = server
            stack.callback(server.close)
            os.killpg(server.process.pid, signal.SIGSTOP)
        yield started


@contextlib.contextmanager
def going(server: Server) -> Iterator[None]:
    """Let a stopped server go on."""
    os.killpg(server.process.pid, signal.SIGCONT)
    try:
        yield
    finally:
        os.killpg(server.process.pid, signal.SIGSTOP)


def turn(server: Server, clients: int, seconds: float) -> Turn:
    """Measure a server under load."""
    with going(server):
        cpu_s, load_s, began = server.cpu_s(), time.process_time(), time.perf_counter()
        until = began + seconds
        answers = asyncio.run(server.ask(sys.maxsize, connections=clients, until=until))
        took, load_s = time.perf_counter() - began, time.process_time() - load_s
        latencies = [1000 * s for _, _, s in answers]
        p50, p99 = np.percentile(latencies, [50, 99]).tolist()
        cpu_s = server.cpu_s() - cpu_s
        return Turn(len(answers), took, cpu_s, float("nan"), p50, p99, load_s / took)


def check_answers(all_servers: Mapping[str, Server]) -> None:
    """Make sure that all contenders give the same answers."""
    given: dict[str, dict[int, dict[str, Any]]] = {}
    for contender, server in all_servers.items():
        with going(server):
            answers = asyncio.run(server.ask(len(PICTURES), connections=1))
            answers += asyncio.run(server.ask(len(PICTURES), connections=16))
        for number, body, _ in answers:
            answer = json.loads(body)
            answer = answer["predictions"][0] if contender == "towerpack" else answer
            same = given.setdefault(contender, {}).setdefault(number, answer)
            _compare(answer, same)
    for number, answer in given["towerpack"].items():
        for other in given.values():
            _compare(other[number], answer)


def _compare(answer: dict[str, Any], other: dict[str, Any]) -> None:
    assert answer["class_ids"] == other["class_ids"]
    np.testing.assert_allclose(answer["probabilities"], other["probabilities"], atol=1e-5)


Turns = dict[str, list[Turn]]


def measured(
    form: str, python: str, clients: Sequence[int], rounds: int, seconds: float
) -> dict[int, Turns]:
    """Return turns by the number of clients. The order of contenders changes in each round."""
    with servers(form, python) as all_servers:
        check_answers(all_servers)
        turns = {n: {name: list[Turn]() for name in CONTENDERS} for n in clients}
        for number, count in itertools.product(range(rounds), clients):
            for name in [*CONTENDERS][:: 1 if number % 2 else -1]:
                turns[count][name].append(turn(all_servers[name], count, seconds))
    return turns


VALUES: list[Callable[[Turn], float]] = [
    lambda t: t.rate,
    lambda t: t.p50_ms,
    lambda t: t.p99_ms,
    lambda t: t.cpu_us,
]


def rows_of(form: str, found: Mapping[int, Turns]) -> list[list[str]]:
    """Return the rows of the table: medians, and our rate divided by the contender's."""
    rows: list[list[str]] = []
    for clients, turns in found.items():
        for name, title in CONTENDERS.items():
            ratio = measure.paired(turns["towerpack"], turns[name], lambda t: t.rate)
            values = [measure.digits(statistics.median(map(v, turns[name]))) for v in VALUES]
            load = statistics.median(t.load for t in turns[name])
            text = "" if name == "towerpack" else str(ratio)
            rows.append([f"{FORMS[form]}, {clients}", title, *values, f"{load:.2f}", text])
    return rows


def verdicts(all_turns: Mapping[str, Mapping[int, Turns]]) -> Iterator[str]:
    """Compare with the aims."""
    for form, (clients, aim) in itertools.product(all_turns, [(64, 2.0), (1, 1.0)]):
        if clients not in all_turns[form]:
            continue
        turns = all_turns[form][clients]
        ratio = measure.paired(turns["towerpack"], turns["litserve"], lambda t: t.rate)
        cpu = measure.paired(turns["litserve"], turns["towerpack"], lambda t: t.cpu_us)
        met = "met" if ratio.median >= aim else "**not met**"
        yield f"- {met}: {FORMS[form]}, {clients} clients, ≥ {aim:g} × LitServe: {ratio}; CPU {cpu}"


def main() -> None:
    """Measure, print, write the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peers", default=sys.executable, help="interpreter with LitServe")
    parser.add_argument("--quick", action="store_true", help="does it run?")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=[*FORMS])
    parser.add_argument("--clients", type=int, nargs="+", default=CLIENTS)
    parser.add_argument("--out", type=Path, default=REPORTS, help="directory for the report")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that servers are ended
    packages = ["tensorflow", "fastapi", "uvicorn", "uvloop", "httptools", "numpy"]
    about = measure.circumstances(packages)
    command = shlex.join(["python", "benchmarks/serving_peers.py", *sys.argv[1:]])
    sizes = (1, 0.3) if options.quick else (options.rounds, options.seconds)
    turns = {form: measured(form, options.peers, options.clients, *sizes) for form in options.forms}
    head = ["requests, clients", "", "requests/s", "p50 ms", "p99 ms"]
    head += ["CPU µs per request", "load: cores", "Towerpack's rate ÷ theirs"]
    rows = [row for form, found in turns.items() for row in rows_of(form, found)]
    parts = [
        "# Serving beside peers",
        f"`{command}`",
        measure.described(about),
        f"LeNet. Batches of at most {MAX_BATCH}, for which LitServe waits up to "
        f"{1000 * BATCH_TIMEOUT_S:g} ms. {sizes[0]} rounds, medians; ratios are taken within "
        "rounds (lowest–highest).",
        # The first two columns are text.
        measure.table(head, rows).replace("---:", "---", 1),
        "\n".join(verdicts(turns)),
    ]
    text = "\n\n".join(parts) + "\n"
    print(text)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "serving_peers.md").write_text(text)
    plain = {
        form: {
            clients: {k: [*map(asdict, v)] for k, v in each.items()} for clients, each in x.items()
        }
        for form, x in turns.items()
    }
    found = {"command": command, "circumstances": about, "turns": plain}
    (options.out / "serving_peers.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
