"""Producers and consumers as processes, killed and stopped."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgpack
import pytest

from processes import communicate, free_port, wait_until
from scaling import scaled
from towerpack import DataFlowError, WorkerError
from towerpack.dataflow import RemoteDataZMQ
from towerpack.dataflow.remote import generate_keys

pytestmark = pytest.mark.timeout(90)
PROGRAM = Path(__file__).parents[3] / "remote_program.py"
Run = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Starts the program; what still runs at the end is killed."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(PROGRAM), *arguments]
        if options:
            command.append(json.dumps(options))
        started.append(subprocess.Popen(command, stderr=subprocess.PIPE))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def ipc(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/s"


def tcp() -> str:
    return f"tcp://127.0.0.1:{free_port()}"


@pytest.mark.parametrize("ordered", [False, True])
def test_producers_are_killed_and_started_again(run: Run, ipc: str, ordered: bool) -> None:
    """Two endpoints, two producers, SIGKILL in the middle: nothing is lost, nothing comes twice."""
    addresses = {"a": ipc, "b": tcp()}
    options = {"count": 300, "nbytes": 40_000, "pause_s": 0.003, "passes": 1}
    running = {name: run("send", addresses[name], name=name, **options) for name in "ab"}
    ds = RemoteDataZMQ(*addresses.values(), hwm=8, ordered=ordered, producers=["a", "b"])
    iterator = ds.iterate(seed=1)
    got: list[tuple[str, int]] = []
    kills = scaled(10, at_least=2)
    for turn in range(kills):
        got += [_checked(dp) for dp in islice(iterator, 200 // kills)]
        victim = "ab"[turn % 2]
        running[victim].send_signal(signal.SIGKILL)
        running[victim].wait()
        if not ordered:
            got += [_checked(dp) for dp in islice(iterator, 5)]  # the other one goes on
        running[victim] = run("send", addresses[victim], name=victim, **options)
        while ds.counts[victim].starts < 2 + turn // 2:
            got.append(_checked(next(iterator)))
            time.sleep(0.05)  # a process takes its time to start; the other one is not to end
    got += [_checked(dp) for dp in iterator]
    for name in "ab":
        assert [number for other, number in got if other == name] == list(range(300))
    if ordered:
        assert [name for name, _ in got] == ["a", "b"] * 300
    assert [process.wait(10) for process in running.values()] == [0, 0]


def _checked(datapoint: tuple[str, int, Any]) -> tuple[str, int]:
    name, number, array = datapoint
    assert (array == number).all()
    return name, number


def test_the_consumer_is_killed_and_started_again(run: Run, ipc: str, tmp_path: Path) -> None:
    path = tmp_path / "got"
    producers = [run("send", ipc, name=name, count=200, passes=1) for name in "ab"]
    for _ in range(scaled(20, at_least=2)):
        size = path.stat().st_size if path.exists() else 0
        consumer = run("receive", ipc, str(path))
        assert wait_until(lambda size=size: path.exists() and path.stat().st_size > size + 3000, 20)
        consumer.kill()
        consumer.wait()
        with path.open("r+b") as file:
            file.truncate(_records(path)[1])
    assert run("receive", ipc, str(path)).wait(30) == 0
    got = [(name, number) for name, number, _ in _records(path)[0]]
    for name in "ab":
        assert [number for other, number in got if other == name] == list(range(200))
    assert [process.wait(10) for process in producers] == [0, 0]


def _records(path: Path) -> tuple[list[Any], int]:
    """The whole records of a file, and where the last of them ends."""
    with path.open("rb") as file:
        unpacker = msgpack.Unpacker(file)
        return list(unpacker), unpacker.tell()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 1)])
@pytest.mark.parametrize("busy", [True, False])
def test_signals_end_a_producer(
    run: Run, ipc: str, number: signal.Signals, code: int, busy: bool
) -> None:
    process = run("send", ipc, name="a", count=10)
    ds = RemoteDataZMQ(ipc, timeout_s=20)
    iterator = ds.iterate()
    next(iterator)
    if not busy:
        iterator.close()
        time.sleep(0.2)  # it waits for a consumer
    ds.timeout_s = 1.6  # more than a heartbeat
    process.send_signal(number)
    assert wait_until(lambda: process.poll() is not None, 3)
    _, text = communicate(process, 10)
    assert process.returncode in (code, -number)
    if number is signal.SIGTERM:
        assert b"Traceback" not in text
    if busy:
        with pytest.raises(WorkerError, match="its connection is lost"):
            list(iterator)


def test_a_listening_producer_is_killed_and_started_again(run: Run) -> None:
    address = tcp()
    options = {"name": "a", "count": 200, "pause_s": 0.001, "bind": True, "passes": 1}
    first = run("send", address, **options)
    iterator = RemoteDataZMQ(address, bind=False, hwm=4).iterate(seed=1)
    got = [_checked(dp) for dp in islice(iterator, 50)]
    first.kill()
    first.wait()
    second = run("send", address, **options)
    got += [_checked(dp) for dp in iterator]
    assert got == [("a", number) for number in range(200)]
    assert second.wait(10) == 0


def test_memory_is_bounded_on_both_sides(run: Run, ipc: str) -> None:
    """300 MB through a window of 4 datapoints of 1 MB, to a consumer that is slow at first."""
    process = run("send", ipc, name="a", count=300, nbytes=1_000_000, passes=1)
    iterator = RemoteDataZMQ(ipc, hwm=4).iterate()
    next(iterator)
    before = _peak(process.pid), _peak("self")
    time.sleep(0.5)
    for _ in islice(iterator, 295):
        pass
    after = _peak(process.pid), _peak("self")
    assert max(now - then for now, then in zip(after, before, strict=True)) < 60_000  # kB
    assert len(list(iterator)) == 4
    assert process.wait(10) == 0


def _peak(pid: int | str) -> int:
    rows = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(row.split()[1]) for row in rows if row.startswith("VmHWM"))


def test_keys_let_in_who_has_them(run: Run, tmp_path: Path) -> None:
    keys, other = generate_keys(tmp_path / "keys", ["one", "two"]), generate_keys(tmp_path / "no")
    address = tcp()
    ds = RemoteDataZMQ(address, keys=keys, timeout_s=1.0, producers=2)
    options = {"count": 20, "passes": 1}
    # Keys of another server, no keys at all, and a key that was taken off the list.
    run("send", address, name="wrong", keys=str(other), **options)
    run("send", address, name="none", **options)
    generate_keys(keys, ["gone"])
    (keys / "allowed" / "gone.key").unlink()
    run("send", address, name="gone", keys=str(keys / "gone.key_secret"), **options)
    iterator = ds.iterate(seed=1)
    with pytest.raises(WorkerError, match="2 more: not come yet"):
        next(iterator)
    ds.timeout_s = 20
    for name in ("one", "two"):
        run("send", address, name=name, keys=str(keys / f"{name}.key_secret"), **options)
    got = [_checked(dp) for dp in iterator]
    assert sorted(got) == [(name, number) for name in ("one", "two") for number in range(20)]
    assert ds.dropped["connections without an allowed key"] > 0


def test_keys_where_producers_listen(run: Run, tmp_path: Path) -> None:
    keys, other = generate_keys(tmp_path / "keys"), generate_keys(tmp_path / "no")
    address = tcp()
    run("send", address, name="a", count=20, passes=1, bind=True, keys=str(keys))
    with pytest.raises(WorkerError, match="1 more: not come yet"):
        next(RemoteDataZMQ(address, bind=False, keys=other, timeout_s=0.7).iterate())
    assert len(list(RemoteDataZMQ(address, bind=False, keys=keys))) == 20


def test_an_error_in_another_process_shows_its_traceback(run: Run, ipc: str) -> None:
    process = run("send", ipc, name="a", count=3, nbytes=-8, passes=1)
    with pytest.raises(DataFlowError) as caught:
        next(RemoteDataZMQ(ipc).iterate())
    assert "producer 'a' raised MapError at datapoint 0" in str(caught.value)
    assert "remote_program.py" in (caught.value.details or "")
    _, text = communicate(process, 15)
    assert process.returncode == 1
    assert b"negative dimensions" in text
