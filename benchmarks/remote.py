"""Remote data beside a bare PUSH/PULL pair of sockets with pickles, which guarantees nothing.

    python benchmarks/remote.py [--quick] [--only WORKLOAD ...] [--rounds N]

Both send the same flow from one process to another over TCP on the loopback. They take turns, and
what counts are ratios within a round. The pair does what the predecessor of this library did: what
was on its way when a process ends is lost, and whoever can connect can have code run.
"""

from __future__ import annotations

import argparse
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import _measure as measure
import numpy as np
import zmq

from towerpack.dataflow import (
    DataFlow,
    DataFromList,
    RemoteDataZMQ,
    RepeatedData,
    send_dataflow_zmq,
)


@dataclass(frozen=True)
class Workload:
    """What is sent.

    Attributes:
        title: In words.
        make: A datapoint of a number.
        count: How many datapoints make an epoch.
        hwm: How many may be ahead.
    """

    title: str
    make: Callable[[int], Any]
    count: int
    hwm: int = 1000


def array(i: int, *shape: int) -> np.ndarray:
    """Noise."""
    return np.random.default_rng(i).integers(0, 256, shape, np.uint8)


WORKLOADS = {
    "bytes": Workload("1000 `bytes` and an int", lambda i: (array(i, 1000).tobytes(), i), 8000),
    "bytes-50": Workload(
        "the same, `hwm=50`", lambda i: (array(i, 1000).tobytes(), i), 8000, hwm=50
    ),
    "numbers": Workload("an int and a float", lambda i: (i, i / 7), 16000),
    "text": Workload("80 characters and an int", lambda i: ("abcdefgh" * 10, i), 16000),
    "array": Workload("an array of 1000 bytes and a label", lambda i: (array(i, 1000), i), 8000),
    "image": Workload(
        "an image of 32 × 32 × 3 and a label", lambda i: (array(i, 32, 32, 3), i), 8000
    ),
    "batch": Workload(
        "a batch of 64 × 224 × 224 × 3", lambda i: (array(i, 64, 224, 224, 3), i), 40, hwm=8
    ),
}


def flow(workload: Workload) -> DataFlow:
    """A few datapoints again and again: making them should cost nothing."""
    few = 4 if workload.hwm == 8 else 64
    return DataFromList([workload.make(i) for i in range(few)], shuffle=False)


# ---------------------------------------------------------------------------- the contenders


def send(contender: str, workload: Workload, address: str) -> None:
    """Send for ever."""
    if contender == "towerpack":
        send_dataflow_zmq(flow(workload), address, workload.hwm, progress=False)
        return
    push = zmq.Context.instance().socket(zmq.PUSH)
    push.set_hwm(workload.hwm)
    push.connect(address)
    for datapoint in RepeatedData(flow(workload), -1):
        push.send(pickle.dumps(datapoint, pickle.HIGHEST_PROTOCOL), copy=False)


def received(contender: str, workload: Workload, address: str) -> Iterator[Any]:
    """What comes."""
    if contender == "towerpack":
        yield from RemoteDataZMQ(address, hwm=workload.hwm)
    pull = zmq.Context.instance().socket(zmq.PULL)
    pull.set_hwm(workload.hwm)
    pull.bind(address)
    while True:
        yield pickle.loads(pull.recv(copy=False))


def contend(contender: str, name: str, address: str, count: int) -> None:
    """Take turns; the sender is a process of its own."""
    gate = measure.Gate(count)
    command = [sys.executable, __file__, "--send", contender, "--only", name, "--address", address]
    sender = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    datapoints = received(contender, WORKLOADS[name], address)
    going = gate.open()
    while going:
        for _ in islice(datapoints, count):
            pass
        going = gate.epoch_done(lambda: 0.0)
    sender.kill()
    sender.wait()


# ---------------------------------------------------------------------------- the comparison


def compare(name: str, *, rounds: int, seconds: float, quick: bool) -> list[str]:
    """A row of the table."""
    count = WORKLOADS[name].count // (50 if quick else 1) or 1
    base = [sys.executable, __file__, "--only", name, "--count", str(count)]
    commands: dict[str, Sequence[str]] = {
        contender: [*base, "--contend", contender, "--address", free_address()]
        for contender in ("towerpack", "pair")
    }
    turns = measure.alternate(commands, rounds=rounds, seconds=seconds)
    ours, theirs = turns["towerpack"], turns["pair"]
    return [
        WORKLOADS[name].title,
        measure.digits(measure.median(ours, lambda turn: turn.rate)),
        measure.digits(measure.median(theirs, lambda turn: turn.rate)),
        str(measure.paired(ours, theirs, lambda turn: turn.rate)),
        str(measure.paired(ours, theirs, lambda turn: turn.cpu_us)),
    ]


def free_address() -> str:
    """A port that was free just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="see that it runs")
    parser.add_argument("--only", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--address", default="", help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--send", help=argparse.SUPPRESS)
    parser.add_argument("--contend", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.send:
        send(options.send, WORKLOADS[options.only[0]], options.address)
    elif options.contend:
        contend(options.contend, options.only[0], options.address, options.count)
    else:
        rounds, seconds = (1, 0.0) if options.quick else (options.rounds, 0.3)
        rows = [
            compare(name, rounds=rounds, seconds=seconds, quick=options.quick)
            for name in options.only
        ]
        header = ["", "datapoints/s", "PUSH/PULL", "speed, ratio", "CPU, ratio"]
        sys.stdout.write(measure.table(header, rows) + "\n\n")
        packages = ["numpy", "pyzmq", "msgpack"]
        sys.stdout.write(measure.described(measure.circumstances(packages)) + "\n")


if __name__ == "__main__":
    main()
