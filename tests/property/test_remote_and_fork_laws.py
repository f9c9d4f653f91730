"""The laws of every flow, for those that need other processes or a process of their own.

A `RemoteDataZMQ` over a producer is the producer's flow, and workers that are forks are workers.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgpack
import pytest

from every_flow import STAGES, Source, in_order, planned
from scaling import sample
from towerpack._core.randomness import derive_seed
from towerpack.dataflow import DataFlow, PrefetchData, RemoteDataZMQ, RepeatedData
from towerpack.dataflow.remote._post import Post
from towerpack.dataflow.remote._producer import Producer
from towerpack.dataflow.remote._progress import Progress
from towerpack.dataflow.testing import same_datapoints

SEED = 11
LIMIT = 22
NAMES = sample([name for name in STAGES if not STAGES[name].needs_plan], at_least=6)


def assert_same(found: list[Any], expected: list[Any], where: str) -> None:
    assert len(found) == len(expected), where
    for index, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert same_datapoints(one, other), f"{where}: {index} is {one!r}, expected {other!r}"


def check_stops(flow: DataFlow, again: DataFlow, whole: list[Any], epoch: int, where: str) -> None:
    """Stopped in a few places and restored, the rest is identical."""
    for stop in sorted({0, 1, len(whole) // 2, len(whole)}):
        iterator = flow.iterate(seed=SEED, epoch=epoch)
        assert_same(list(islice(iterator, stop)), whole[:stop], f"{where}, up to {stop}")
        state = msgpack.unpackb(msgpack.packb(iterator.state()))
        iterator.close()
        rest = list(islice(again.iterate(state=state), len(whole) - stop))
        assert_same(rest, whole[stop:], f"{where}, from {stop} on")


# ---------------------------------------------------------------------------- remote data


@pytest.fixture
def sent() -> Iterator[Any]:
    """Starts a producer in a thread, which ends with the test."""
    stopping = threading.Event()
    threads: list[threading.Thread] = []

    def loop(flow: DataFlow, address: str) -> None:
        post = Post([address], bind=False, keys=None, hwm=8, max_nbytes=1 << 26)
        options: dict[str, Any] = {"exact": True, "hwm": 8, "seed": None, "stay": True}
        producer = Producer(flow, post, name="a", progress=Progress(False), **options)
        while not stopping.is_set():
            if not producer.step():
                post.wait(0.02)
        post.close(linger_s=0)

    def start(flow: DataFlow, address: str) -> None:
        threads.append(threading.Thread(target=loop, args=(flow, address)))
        threads[-1].start()

    yield start
    stopping.set()
    for thread in threads:
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("source", [planned, in_order])
def test_remote_data_are_what_the_producers_flow_gives(
    name: str, source: Source, tmp_path: Path, sent: Any
) -> None:
    address = f"ipc://{tmp_path}/s"
    # Without `passes` a producer sends a flow again and again; here one pass is one.
    sent(RepeatedData(STAGES[name].make(source), 1), address)
    plain = RepeatedData(STAGES[name].plain(source), 1)
    for epoch in (0, 1):
        probe = RemoteDataZMQ(address, producers=["a"]).iterate(seed=SEED, epoch=epoch)
        whole = list(islice(probe, LIMIT))
        wish = probe._stream._wish.seed  # type: ignore[attr-defined]
        probe.close()
        seed = derive_seed(wish, "a")
        expected = list(islice(plain.iterate(seed=seed, epoch=epoch), LIMIT))
        assert_same(whole, expected, f"{name}, epoch {epoch}")
        one, other = (RemoteDataZMQ(address, hwm=hwm, producers=["a"]) for hwm in (3, 50))
        check_stops(one, other, whole, epoch, f"{name}, epoch {epoch}")


# ---------------------------------------------------------------------------- forks


def check_forks(name: str) -> None:
    """Runs in a process of its own: where there are threads, or TensorFlow, forks are refused."""
    for source in (planned, in_order):
        whole = list(islice(STAGES[name].plain(source).iterate(seed=SEED, epoch=1), LIMIT))
        for workers, others in ((1, 3), (2, 0), (3, 1)):
            one, other = (
                PrefetchData(STAGES[name].plain(source), num_proc=count, start="fork")
                for count in (workers, others)
            )
            where = f"{name}, {source.__name__}, {workers} forks and then {others}"
            check_stops(one, other, whole, 1, where)


@pytest.mark.slow
def test_forks_give_what_one_process_gives() -> None:
    command = [sys.executable, __file__, *NAMES]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    # What was printed and is not written yet must not be written by forks, too.
    environment.pop("PYTHONUNBUFFERED", None)
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n") == [*NAMES, ""]


if __name__ == "__main__":
    for one in sys.argv[1:]:
        check_forks(one)
        sys.stdout.write(f"{one}\n")
