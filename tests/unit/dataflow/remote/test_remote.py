"""Remote data: what is sent arrives, in order; what ends, breaks or lies is told."""

from __future__ import annotations

import contextlib
import functools
import json
import multiprocessing
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from processes import communicate, free_port, wait_until
from towerpack import ConfigError, DataFlowError, StateError, WorkerError
from towerpack._core.randomness import derive_seed
from towerpack.dataflow import (
    BatchData,
    DataFlow,
    DataFromArrays,
    DataFromList,
    MapData,
    RemoteDataZMQ,
    RepeatedData,
    ShuffleData,
    send_dataflow_zmq,
)
from towerpack.dataflow.formats import pack_frames
from towerpack.dataflow.formats._wire import pack_list
from towerpack.dataflow.remote import _protocol, _send, generate_keys
from towerpack.dataflow.remote._protocol import Kind, header
from towerpack.dataflow.testing import same_datapoints

pytestmark = pytest.mark.timeout(90)
PROGRAM = Path(__file__).parents[3] / "support" / "remote_program.py"
Run = Callable[..., "subprocess.Popen[bytes]"]


def tcp() -> str:
    return f"tcp://127.0.0.1:{free_port()}"


@pytest.fixture
def ipc(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/s"


@pytest.fixture
def run() -> Iterator[Run]:
    """Starts producers as processes; what still runs at the end is killed."""
    started: list[subprocess.Popen[bytes]] = []

    def start(address: str, **options: Any) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(PROGRAM), address, json.dumps(options)]
        started.append(subprocess.Popen(command, stderr=subprocess.PIPE))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def send(flow: DataFlow, address: str, **options: Any) -> threading.Thread:
    """A producer in a thread: one pass."""
    settings = {"passes": 1, "name": "a", "progress": False, **options}
    thread = threading.Thread(
        target=send_dataflow_zmq, args=(flow, address), kwargs=settings, daemon=True
    )
    thread.start()
    return thread


def numbers(count: int) -> DataFlow:
    return DataFromList([(i,) for i in range(count)], shuffle=False)


@pytest.mark.parametrize("scheme", ["tcp", "ipc", "inproc"])
@pytest.mark.parametrize("bind", [False, True])
def test_what_is_sent_arrives_as_it_is(scheme: str, bind: bool, tmp_path: Path) -> None:
    addresses = {"tcp": tcp(), "ipc": f"ipc://{tmp_path}/s", "inproc": f"inproc://{tmp_path}"}
    flow = BatchData(ShuffleData(DataFromArrays(np.arange(90), np.ones((90, 900)))), 6)
    sender = send(flow, addresses[scheme], bind=bind, passes=2, seed=3)
    ds = RemoteDataZMQ(addresses[scheme], bind=not bind, timeout_s=30)
    found = list(ds)
    sender.join(10)
    assert not sender.is_alive()
    expected = list(RepeatedData(flow, 2).iterate(seed=derive_seed(3, "a")))
    assert all(map(same_datapoints, found, expected)) and len(found) == 30
    found[0][1][:] = 5  # the arrays are the consumer's
    assert (ds.counts["a"].datapoints, ds.counts["a"].lost) == (30, 0)


def test_small_datapoints_travel_together(ipc: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_send, "_QUICKLY_S", 10.0)
    together: list[int] = []
    monkeypatch.setattr(
        _send, "pack_list", lambda values: together.append(len(values)) or pack_list(values)
    )
    send(numbers(1000), ipc, hwm=1000)
    ds = RemoteDataZMQ(ipc, timeout_s=30)
    assert list(ds) == list(numbers(1000)) and ds.counts["a"].lost == 0
    assert together == [1] * 128 + [128] * 6 + [104]


def test_several_producers_and_addresses(run: Run, ipc: str) -> None:
    # A process, which can be ended: a producer that nobody listens to waits for ever.
    run(ipc, name="other", count=9, passes=1)
    addresses = {"a": ipc, "b": tcp()}

    def named(dp: tuple[int], name: str) -> tuple[str, int]:
        time.sleep(0.05)  # until the other one is there, too
        return name, dp[0]

    for name, address in addresses.items():
        send(MapData(numbers(9), functools.partial(named, name=name)), address, name=name)
    ds = RemoteDataZMQ(addresses["b"], ipc, producers=["a", "b"], timeout_s=30)
    found = list(ds)
    for name in "ab":
        assert [dp for dp in found if dp[0] == name] == [(name, i) for i in range(9)]
        assert ds.counts[name].datapoints == 9
    assert ds.counts.keys() == {"a", "b"}


def test_a_producer_is_no_further_ahead_than_both_sides_allow(ipc: str) -> None:
    made: list[int] = []

    def noted(dp: tuple[int]) -> tuple[int, Any]:
        made.append(dp[0])
        return dp[0], np.zeros(300_000)  # more than the system's own buffers hold

    send(MapData(numbers(40), noted), ipc, hwm=3)
    iterator = RemoteDataZMQ(ipc, hwm=2, timeout_s=30).iterate()
    next(iterator)
    assert wait_until(lambda: len(made) >= 4, 20)
    time.sleep(0.3)
    assert len(made) <= 10
    assert [dp[0] for dp in iterator] == list(range(1, 40))


def test_what_a_flow_raises_is_raised_on_both_sides(run: Run, ipc: str) -> None:
    process = run(ipc, name="a", count=3, nbytes=-8, passes=1)
    with pytest.raises(DataFlowError, match="producer 'a' raised MapError at datapoint 0") as got:
        next(RemoteDataZMQ(ipc, timeout_s=60).iterate())
    assert "remote_program.py" in (got.value.details or "")
    _, text = communicate(process, 15)
    assert process.returncode == 1 and b"negative dimensions" in text


def test_what_cannot_be_packed_is_an_error_and_no_pickle(ipc: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send_dataflow_zmq, DataFromList([(object(),)]), ipc, name="a")
        with pytest.raises(DataFlowError, match="object cannot be packed"):
            next(RemoteDataZMQ(ipc, timeout_s=30).iterate())
        assert "object cannot be packed" in str(sending.exception(15))


def test_a_producer_is_killed_and_started_again(run: Run, ipc: str) -> None:
    """What it had on its way is lost; what comes is in order, and the other one goes on."""
    options = {"count": 100, "nbytes": 4000, "pause_s": 0.002, "passes": 1}
    other = run(ipc, name="b", **options)
    first = run(ipc, name="a", **options)
    ds = RemoteDataZMQ(ipc, hwm=4, producers=["a", "b"], timeout_s=60)
    iterator = iter(ds)
    found = [next(iterator)]
    while "a" not in ds.counts or ds.counts["a"].datapoints < 20:
        found.append(next(iterator))
    first.kill()
    first.wait()
    again = run(ipc, name="a", **options)
    found += iterator
    assert all((array == number).all() for _, number, array in found)
    assert [n for name, n, _ in found if name == "b"] == list(range(100))
    came = [n for name, n, _ in found if name == "a"]
    assert came[-100:] == list(range(100)) and came[:-100] == list(range(len(came) - 100))
    assert ds.counts["a"].starts == 2
    assert [other.wait(10), again.wait(10)] == [0, 0]


def test_a_new_pass_goes_on_with_what_comes(run: Run, ipc: str) -> None:
    run(ipc, name="a", count=10)
    ds = RemoteDataZMQ(ipc, hwm=2, timeout_s=60)
    old = iter(ds)
    assert next(old)[1] == 0
    new = iter(ds)
    before = next(new)[1]
    for _, number, _ in islice(new, 30):  # endless: pass after pass
        assert number == (before + 1) % 10
        before = number
    with pytest.raises(DataFlowError, match="another pass over the same address has begun"):
        list(old)


@pytest.mark.parametrize("busy", [False, True])
def test_ctrl_c_ends_a_producer(run: Run, ipc: str, busy: bool) -> None:
    process = run(ipc, name="a", count=10)
    iterator = RemoteDataZMQ(ipc, timeout_s=60).iterate()
    next(iterator)
    if not busy:
        iterator.close()
        time.sleep(0.3)  # it waits for a consumer
    process.send_signal(signal.SIGINT)
    communicate(process, 10)
    assert process.returncode in (1, -signal.SIGINT)


def test_whoever_waits_says_for_whom(ipc: str) -> None:
    send(numbers(3), ipc)
    iterator = RemoteDataZMQ(ipc, producers=["a", "b"], timeout_s=0.2).iterate()
    assert [next(iterator) for _ in range(3)] == [(0,), (1,), (2,)]
    for _ in range(2):
        with pytest.raises(WorkerError, match="waiting for b; 1 connected"):
            next(iterator)
    send(numbers(1), ipc, name="b")
    assert list(iterator) == [(0,)]


def test_another_thread_may_close_and_another_process_may_not_read(run: Run, ipc: str) -> None:
    run(ipc, name="a", count=10)
    iterator = RemoteDataZMQ(ipc, timeout_s=60).iterate()
    next(iterator)

    def child() -> None:
        with pytest.raises(DataFlowError, match="begun in another process"):
            next(iterator)
        iterator.close()

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(20)
    assert process.exitcode == 0
    threading.Timer(0.3, iterator.close).start()
    with pytest.raises(DataFlowError, match="it was closed"):
        list(iterator)


def test_damaged_and_foreign_messages_are_dropped(
    ipc: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever anybody sends: no other exception than ours, and right messages arrive."""
    rng = np.random.default_rng(0)
    frames = [bytes(frame) for frame in pack_frames((1, "text", np.arange(500)))]
    context = zmq.Context()
    push = context.socket(zmq.DEALER)
    push.connect(ipc)
    push.send_multipart([b"", b"x"])
    push.send_multipart([b"GET / HTTP/1.1"])
    push.send_multipart([header(Kind.DATA, b"r" * 8, 0, b"\xff")])
    for number in range(60):
        damaged = [header(Kind.DATA, b"r" * 8, number, b"x"), *frames]
        place = int(rng.integers(1, len(damaged)))
        wrong = bytearray(damaged[place])
        wrong[rng.integers(len(wrong))] ^= 1 << int(rng.integers(8))
        damaged[place] = bytes(wrong[: rng.integers(1, 2 * len(wrong))])
        push.send_multipart(damaged)
    push.send_multipart([header(Kind.ERROR, b"q" * 8, 0, b"y"), b"\x1b"])
    push.send_multipart([header(Kind.END, b"r" * 8, 60, b"x")])
    iterator = RemoteDataZMQ(ipc, hwm=100, timeout_s=30).iterate()
    came = 0
    while True:
        try:
            next(iterator)
            came += 1
        except StopIteration:
            break
        except DataFlowError as error:
            assert "producer 'y' raised ? at datapoint 0: " in str(error)
    context.destroy(linger=0)
    assert came < 60 and "The message has another version" in caplog.text


def _greeting(kind: bytes) -> bytes:
    """What a peer of ZMTP 3.0 without keys says before its first message."""
    ready = b"\x05READY\x0bSocket-Type" + len(kind).to_bytes(4, "big") + kind
    mechanism = b"NULL".ljust(20, b"\0") + bytes(32)
    return b"\xff" + bytes(8) + b"\x7f\x03\x00" + mechanism + b"\x04" + bytes([len(ready)]) + ready


def test_frames_that_are_announced_too_large_end_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No byte of such a frame is awaited or kept, and others go on."""
    monkeypatch.setattr(_protocol, "_HEARTBEAT_MS", 60_000)  # which would end it, too
    address = tcp()
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    ds = RemoteDataZMQ(address, max_nbytes=1 << 20, timeout_s=30, producers=["a"])
    with ThreadPoolExecutor(1) as pool:
        came = pool.submit(list, ds.iterate())
        for size in (1 << 21, 1 << 40, (1 << 63) - 1):
            deadline = time.monotonic() + 20
            while True:  # until the other thread listens
                try:
                    peer = socket.create_connection((host, int(port)), timeout=20)
                    break
                except ConnectionRefusedError:
                    assert time.monotonic() < deadline
                    time.sleep(0.02)
            with peer:
                peer.sendall(_greeting(b"DEALER") + b"\x02" + size.to_bytes(8, "big"))
                with contextlib.suppress(ConnectionResetError):
                    while peer.recv(1000):
                        pass
        send(numbers(3), address)
        assert came.result(30) == [(0,), (1,), (2,)]


def test_many_frames_and_many_strangers_are_a_few_lines(
    ipc: str, caplog: pytest.LogCaptureFixture
) -> None:
    context = zmq.Context()
    push = context.socket(zmq.DEALER)
    push.sndhwm = 0  # nobody listens yet
    push.connect(ipc)
    push.send_multipart([header(Kind.DATA, b"r" * 8, 0, b"a")] + [b"x"] * 50_000)
    for number in range(1000):
        push.send_multipart([header(Kind.DATA, b"s" * 8, 0, b"%d" % number), pack_list([])])
    push.send_multipart([header(Kind.DATA, b"t" * 8, 0, b"a"), *pack_frames([(7,)])])
    push.send_multipart([header(Kind.END, b"t" * 8, 1, b"a")])
    ds = RemoteDataZMQ(ipc, hwm=2000, timeout_s=30, producers=["a"])
    assert list(ds) == [(7,)]
    context.destroy(linger=0)
    assert sum(ds.dropped.values()) == 1001
    assert len(ds.dropped) <= 101
    assert len(caplog.records) <= 102


def test_keys_let_in_who_has_them(run: Run, tmp_path: Path) -> None:
    keys, other = generate_keys(tmp_path / "keys", ["one"]), generate_keys(tmp_path / "no")
    address = tcp()
    options = {"count": 20, "passes": 1}
    # Keys of another server, no keys at all, and a key that was taken off the list.
    generate_keys(keys, ["gone"])
    (keys / "allowed" / "gone.key").unlink()
    run(address, name="wrong", keys=str(other), **options)
    run(address, name="none", **options)
    run(address, name="gone", keys=str(keys / "gone.key_secret"), **options)
    ds = RemoteDataZMQ(address, keys=keys, timeout_s=1, producers=1)
    iterator = iter(ds)
    with pytest.raises(WorkerError, match="that their keys match"):
        next(iterator)
    ds.timeout_s = 60
    run(address, name="one", keys=str(keys / "one.key_secret"), **options)
    assert [dp[:2] for dp in iterator] == [("one", number) for number in range(20)]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: RemoteDataZMQ("tcp://127.0.0.1:0"), "not an address"),
        (lambda: RemoteDataZMQ("tcp://127.0.0.1"), "not an address"),
        (lambda: RemoteDataZMQ(5555), "not an address"),  # type: ignore[arg-type]
        (lambda: RemoteDataZMQ("tcp://0.0.0.0:5555"), "needs keys"),
        (lambda: RemoteDataZMQ("tcp://127.example.org:1"), "needs keys"),
        (lambda: RemoteDataZMQ("ipc://x", "tcp://localhost.example.org:1"), "needs keys"),
        (lambda: RemoteDataZMQ("ipc://x", producers=0), "a positive number or a list"),
        (lambda: RemoteDataZMQ("ipc://x", producers=["a", "a"]), "a positive number or a list"),
        (lambda: RemoteDataZMQ("ipc://x").iterate(state={"inner": 3}), "state"),
        (lambda: send_dataflow_zmq(numbers(1), "tcp://eth0:5555"), "needs keys"),
        (lambda: send_dataflow_zmq(numbers(1), "ipc://x", format="zmq_ops"), "format"),
        (lambda: send_dataflow_zmq(numbers(1), "ipc://x", name="a" * 300), "1 to 200 bytes"),
    ],
)
def test_bad_arguments(make: Callable[[], Any], words: str) -> None:
    with pytest.raises((ConfigError, StateError), match=words):
        make()


def test_places_that_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_protocol, "_BIND_PATIENCE_S", 0.1)
    file = tmp_path / "precious"
    file.write_text("content")
    with pytest.raises(ConfigError, match="must not be an existing"):
        next(RemoteDataZMQ(f"ipc://{file}").iterate())
    assert file.read_text() == "content"
    context = zmq.Context()
    taken = context.socket(zmq.PULL)
    port = taken.bind_to_random_port("tcp://127.0.0.1")
    with pytest.raises(DataFlowError, match="Cannot listen"):
        next(RemoteDataZMQ(f"tcp://127.0.0.1:{port}").iterate())
    context.destroy(linger=0)
