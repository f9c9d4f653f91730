"""What dynamic batching is worth: `towerpack serve` with batches of 32 and with none.

    python benchmarks/serving.py [--quick] [--rounds N] [--seconds S] [--out DIR]

LeNet on pictures of 28 × 28 that come as raw float32 bodies, over 32 connections that each ask
again when they are answered. Two processes of `towerpack serve`, one with `--batch 32`, one with
`--batch 1`; they take turns, the other one idles. The load comes from this process, on the same
cores. Both give the same answers, which is checked first.

Aims: at least 2 times the requests per second of the server without batches, at most half of its
processor time per request.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import _measure as measure
import numpy as np

REPORTS = Path(__file__).parent / "reports"
CONNECTIONS = 32
BATCHES = {"towerpack": 32, "unbatched": 1}
AIMS = {"requests per second": 2.0, "processor time per request": 0.5}
PICTURES = np.random.default_rng(0).random((64, 28, 28, 1), np.float32)


def export(folder: Path) -> None:
    """Write LeNet with random weights, as version 1. The signature `files` takes JPEG files."""
    import tensorflow as tf

    rng = np.random.default_rng(0)

    class LeNet(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            shapes = [(5, 5, 1, 32), (5, 5, 32, 64), (7 * 7 * 64, 512), (512, 10)]
            self.kernels = [tf.Variable(rng.normal(0, 0.05, s), dtype=tf.float32) for s in shapes]

        @tf.function(input_signature=[tf.TensorSpec([None, 28, 28, 1], tf.float32, "image")])
        def predict(self, image: tf.Tensor) -> dict[str, tf.Tensor]:
            x = image
            for kernel in self.kernels[:2]:
                x = tf.nn.max_pool2d(tf.nn.relu(tf.nn.conv2d(x, kernel, 1, "SAME")), 2, 2, "SAME")
            x = tf.nn.relu(tf.reshape(x, [-1, 7 * 7 * 64]) @ self.kernels[2]) @ self.kernels[3]
            return {"class_ids": tf.argmax(x, 1), "probabilities": tf.nn.softmax(x)}

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "image_bytes")])
        def predict_files(self, files: tf.Tensor) -> dict[str, tf.Tensor]:
            def decoded(file: tf.Tensor) -> tf.Tensor:
                return tf.image.resize(tf.io.decode_jpeg(file, channels=1), [28, 28]) / 255

            return self.predict(tf.map_fn(decoded, files, fn_output_signature=tf.float32))

    net = LeNet()
    signatures = {"serving_default": net.predict, "files": net.predict_files}
    tf.saved_model.save(net, os.fspath(folder / "1"), signatures)


class Load(asyncio.Protocol):
    """One connection, which asks again when it is answered.

    Args:
        requests: What it sends, in turn.
        answers: Where the bodies of answers go, with the numbers of their requests and the seconds
            that they took.
    """

    def __init__(self, requests: list[bytes], answers: list[tuple[int, bytes, float]]) -> None:
        self._requests = requests
        self._answers = answers
        self._received = b""
        self.left = 0
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def start(self, count: int, until: float = math.inf) -> None:
        """Ask `count` times, but no more when `time.perf_counter()` is `until`."""
        self.left, self._until = count, until
        self.done = asyncio.get_running_loop().create_future()
        self._ask()

    def _ask(self) -> None:
        self._number = self.left % len(self._requests)
        self._asked = time.perf_counter()
        self._transport.write(self._requests[self._number])

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, separator, body = self._received.partition(b"\r\n\r\n")
        if not separator:
            return
        (length,) = re.findall(rb"content-length: (\d+)", head)
        if len(body) < int(length):
            return
        if b" 200 " not in head[:20]:
            self.done.set_exception(RuntimeError(f"{head!r} {body[:500]!r}"))
            return
        self._received = b""
        now = time.perf_counter()
        self._answers.append((self._number, body, now - self._asked))
        self.left -= 1
        if self.left and now < self._until:
            self._ask()
        else:
            self.done.set_result(None)


class Server:
    """A process that serves, and the load on it.

    Args:
        command: Starts the process.
        address: Host and port.
        requests: What connections send.
    """

    def __init__(
        self, command: Sequence[str], address: tuple[str, int], requests: list[bytes]
    ) -> None:
        self._address, self._requests = address, requests
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, env=environment, start_new_session=True
        )
        end = time.monotonic() + 120
        while not self._accepts():
            if self.process.poll() is not None or time.monotonic() > end:
                self.close()
                raise RuntimeError(f"{shlex.join(command)} did not start")
            time.sleep(0.2)

    def _accepts(self) -> bool:
        with contextlib.suppress(OSError):
            socket.create_connection(self._address, 1).close()
            return True
        return False

    async def ask(
        self, count: int, connections: int = CONNECTIONS, until: float = math.inf
    ) -> list[tuple[int, bytes, float]]:
        """Send `count` requests over each connection; answers come with their picture's number."""
        loop = asyncio.get_running_loop()
        answers: list[tuple[int, bytes, float]] = []
        load = [
            await loop.create_connection(lambda: Load(self._requests, answers), *self._address)
            for _ in range(connections)
        ]
        for _, each in load:
            each.start(count, until)
        async with asyncio.timeout(60):
            await asyncio.gather(*[each.done for _, each in load])
        for transport, _ in load:
            transport.close()
        return answers

    def cpu_s(self) -> float:
        """User and system time of all of its processes."""
        pids = [self.process.pid, *measure.descendants(self.process.pid)]
        return sum(map(measure.cpu_of, pids))

    def turn(self, count: int) -> measure.Turn:
        """What that costs the server."""
        cpu_s, began = self.cpu_s(), time.perf_counter()
        answers = asyncio.run(self.ask(count))
        seconds = time.perf_counter() - began
        return measure.Turn(len(answers), seconds, self.cpu_s() - cpu_s, float("nan"))

    def close(self) -> None:
        """End it, and its processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)


def towerpack(folder: Path, batch: int, requests: list[bytes]) -> Server:
    """Start `towerpack serve`."""
    port = free_port()
    command = f"-m towerpack serve {folder} --name lenet --port {port} --batch {batch}"
    return Server([sys.executable, *command.split()], ("127.0.0.1", port), requests)


def request_of(path: str, body: bytes, content_type: str) -> bytes:
    """Return an HTTP request."""
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {content_type}\r\n"
    return head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body


def free_port() -> int:
    """Return a port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


@contextlib.contextmanager
def servers() -> Iterator[dict[str, Server]]:
    """Both, by name."""
    with tempfile.TemporaryDirectory() as directory:
        export(Path(directory))
        form = "application/octet-stream"
        path = "/v1/models/lenet:predict"
        requests = [request_of(path, picture.tobytes(), form) for picture in PICTURES]
        started: dict[str, Server] = {}
        try:
            for name, batch in BATCHES.items():
                started[name] = towerpack(Path(directory), batch, requests)
            yield started
        finally:
            for server in started.values():
                server.close()


def check_answers(both: dict[str, Server]) -> None:
    """Make sure that batches change no answer."""
    answers = asyncio.run(both["unbatched"].ask(len(PICTURES), connections=1))
    alone = {number: answer for number, answer, _ in answers}
    for number, answer, _ in asyncio.run(both["towerpack"].ask(len(PICTURES))):
        np.testing.assert_allclose(_probabilities(answer), _probabilities(alone[number]), atol=1e-5)


def _probabilities(answer: bytes) -> list[float]:
    return json.loads(answer)["predictions"][0]["probabilities"]


def measured(rounds: int, seconds: float) -> dict[str, list[measure.Turn]]:
    """The turns of both; who begins changes."""
    with servers() as both:
        check_answers(both)
        counts: dict[str, int] = {}
        for name, server in both.items():
            rate = server.turn(8).rate
            counts[name] = max(1, round(rate * seconds / CONNECTIONS))
        turns: dict[str, list[measure.Turn]] = {name: [] for name in both}
        for number in range(rounds):
            for name in list(both)[:: 1 if number % 2 else -1]:
                turns[name].append(both[name].turn(counts[name]))
    return turns


def report(found: dict[str, Any], turns: dict[str, list[measure.Turn]]) -> str:
    """Everything in words and a table."""
    ours, base = turns["towerpack"], turns["unbatched"]
    rate = measure.paired(ours, base, lambda turn: turn.rate)
    cpu = measure.paired(ours, base, lambda turn: turn.cpu_us)
    rows = [
        [
            f"`--batch {BATCHES[name]}`",
            measure.digits(measure.median(each, lambda turn: turn.rate)),
            measure.digits(measure.median(each, lambda turn: turn.cpu_us)),
        ]
        for name, each in turns.items()
    ]
    verdicts = [
        f"- {'met' if met else '**not met**'}: {what}: {ratio}"
        for what, ratio, met in [
            ("requests per second ≥ 2 ×", rate, rate.median >= AIMS["requests per second"]),
            ("processor time ≤ 0.5 ×", cpu, cpu.median <= AIMS["processor time per request"]),
        ]
    ]
    parts = [
        "# What dynamic batching is worth",
        f"`{found['command']}`",
        measure.described(found["circumstances"]),
        f"LeNet, raw float32 bodies, {CONNECTIONS} connections, the load on the same cores; "
        f"{len(base)} rounds. Medians; ratios are taken within a round and given as median "
        "(lowest–highest).",
        measure.table(["", "requests/s", "processor µs per request"], rows),
        "\n".join(verdicts),
    ]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Measure, print, write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="does it run?")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=3.0, help="of a turn")
    parser.add_argument("--out", type=Path, default=REPORTS, help="directory for the report")
    options = parser.parse_args()
    packages = ["tensorflow", "fastapi", "uvicorn", "uvloop", "httptools", "numpy"]
    found: dict[str, Any] = {
        "command": shlex.join(["python", "benchmarks/serving.py", *sys.argv[1:]]),
        "circumstances": measure.circumstances(packages),
    }
    turns = measured(*((2, 0.2) if options.quick else (options.rounds, options.seconds)))
    found["turns"] = {
        name: [{"requests": t.steps, "seconds": t.seconds, "cpu_s": t.cpu_s} for t in each]
        for name, each in turns.items()
    }
    text = report(found, turns)
    print(text)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "serving.md").write_text(text)
    (options.out / "serving.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
