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
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
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
    """Write LeNet with random weights, as version 1."""
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

    net = LeNet()
    tf.saved_model.save(net, os.fspath(folder / "1"), net.predict)


class Load(asyncio.Protocol):
    """One connection, which asks again when it is answered.

    Args:
        requests: What it sends, in turn.
        answers: Where the bodies of answers go, with the numbers of their requests.
    """

    def __init__(self, requests: list[bytes], answers: list[tuple[int, bytes]]) -> None:
        self._requests = requests
        self._answers = answers
        self._received = b""
        self.left = 0
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def start(self, count: int) -> None:
        """Ask `count` times."""
        self.left = count
        self.done = asyncio.get_running_loop().create_future()
        self._ask()

    def _ask(self) -> None:
        self._number = self.left % len(self._requests)
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
        self._answers.append((self._number, body))
        self.left -= 1
        if self.left:
            self._ask()
        else:
            self.done.set_result(None)


class Server:
    """A process of `towerpack serve`, and the load on it."""

    def __init__(self, folder: Path, batch: int) -> None:
        command = f"-m towerpack serve {folder} --name lenet --port 0 --batch {batch}"
        self._process = subprocess.Popen(
            [sys.executable, *command.split()], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        found = re.search(r"http://([^:]+):(\d+)/ ", self._process.stdout.readline())
        assert found, "the server did not start"
        self._address = found[1], int(found[2])
        self._requests = [
            b"POST /v1/models/lenet:predict HTTP/1.1\r\nhost: x\r\n"
            b"content-type: application/octet-stream\r\ncontent-length: %d\r\n\r\n"
            % len(body)
            + body
            for body in (picture.tobytes() for picture in PICTURES)
        ]

    async def ask(self, count: int, connections: int = CONNECTIONS) -> list[tuple[int, bytes]]:
        """Send `count` requests over each connection; answers come with their picture's number."""
        loop = asyncio.get_running_loop()
        answers: list[tuple[int, bytes]] = []
        load = [
            await loop.create_connection(lambda: Load(self._requests, answers), *self._address)
            for _ in range(connections)
        ]
        for _, each in load:
            each.start(count)
        await asyncio.gather(*[each.done for _, each in load])
        for transport, _ in load:
            transport.close()
        return answers

    def turn(self, count: int) -> measure.Turn:
        """What that costs the server."""
        cpu_s, began = measure.cpu_of(self._process.pid), time.perf_counter()
        answers = asyncio.run(self.ask(count))
        seconds = time.perf_counter() - began
        return measure.Turn(
            len(answers), seconds, measure.cpu_of(self._process.pid) - cpu_s, float("nan")
        )

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(30)


@contextlib.contextmanager
def servers() -> Iterator[dict[str, Server]]:
    """Both, by name."""
    with tempfile.TemporaryDirectory() as directory:
        export(Path(directory))
        started: dict[str, Server] = {}
        try:
            for name, batch in BATCHES.items():
                started[name] = Server(Path(directory), batch)
            yield started
        finally:
            for server in started.values():
                server.close()


def check_answers(both: dict[str, Server]) -> None:
    """Make sure that batches change no answer."""
    alone = dict(asyncio.run(both["unbatched"].ask(len(PICTURES), connections=1)))
    for number, answer in asyncio.run(both["towerpack"].ask(len(PICTURES))):
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
