"""Remote data over real sockets, within one process."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import socket
import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

from processes import free_port, stopwatch
from towerpack import ConfigError, DataFlowError, StateError, WorkerError
from towerpack.dataflow import (
    BatchData,
    DataFlow,
    DataFromArrays,
    DataFromList,
    FixedSizeData,
    MapData,
    RemoteDataZMQ,
    RepeatedData,
    ShuffleData,
    send_dataflow_zmq,
)
from towerpack.dataflow.remote import _consumer, _post, _producer
from towerpack.dataflow.remote._post import Post
from towerpack.dataflow.remote._producer import Producer
from towerpack.dataflow.remote._progress import Progress
from towerpack.dataflow.remote._remote import RemoteStream
from towerpack.dataflow.testing import check_length, check_pass, check_resume

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(params=["tcp", "ipc", "inproc"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return {
        "tcp": f"tcp://127.0.0.1:{free_port()}",
        "ipc": f"ipc://{tmp_path}/s",
        "inproc": f"inproc://{tmp_path}",
    }[request.param]


@pytest.fixture
def ipc(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/s"


Serve = Callable[..., None]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts producers in threads, which end with the test."""
    stopping = threading.Event()
    threads: list[threading.Thread] = []

    def loop(flow: DataFlow, address: str, bind: bool, options: dict[str, Any]) -> None:
        post = Post([address], bind=bind, keys=None, hwm=8, max_nbytes=1 << 26)
        producer = Producer(
            flow, post, exact=True, seed=None, stay=True, progress=Progress(False), **options
        )
        while not stopping.is_set():
            if not producer.step():
                post.wait(0.02)
        post.close(linger_s=0)

    def start(flow: DataFlow, address: str, *, bind: bool = False, **options: Any) -> None:
        settings = {"name": "a", "hwm": 8, **options}
        threads.append(threading.Thread(target=loop, args=(flow, address, bind, settings)))
        threads[-1].start()

    yield start
    stopping.set()
    for thread in threads:
        thread.join()


def pipeline() -> DataFlow:
    return BatchData(ShuffleData(DataFromArrays(np.arange(90), np.ones((90, 40)))), 6)


def test_a_pass_arrives_as_it_is(address: str, serve: Serve) -> None:
    serve(pipeline(), address)
    ds = RemoteDataZMQ(address)
    got = list(ds.iterate(seed=3))
    assert sorted(np.concatenate([numbers for numbers, _ in got]).tolist()) == list(range(90))
    assert all(ones.dtype == np.float64 and ones.shape == (6, 40) for _, ones in got)
    got[0][1][:] = 5  # the arrays are the consumer's
    assert ds.counts["a"].datapoints == 15


def test_the_laws(ipc: str, serve: Serve) -> None:
    for name in "ab":
        serve(pipeline(), ipc, name=name)

    def make() -> DataFlow:
        return RemoteDataZMQ(ipc, ordered=True, producers=["a", "b"], hwm=3)

    check_pass(make, limit=10)
    check_length(make)
    check_resume(make, epochs=1, stops=[7])


def test_the_laws_under_other_stages(ipc: str, serve: Serve) -> None:
    serve(DataFromArrays(np.arange(20)), ipc)

    def make() -> DataFlow:
        ds = RepeatedData(RemoteDataZMQ(ipc, producers=1), 2)
        return BatchData(MapData(ds, lambda dp: (dp[0] * 2,)), 7)

    check_resume(make, epochs=1, stops=[4])


def test_endless_producers_feed_passes_of_a_chosen_size(ipc: str, serve: Serve) -> None:
    serve(RepeatedData(DataFromArrays(np.arange(10))), ipc)
    ds = FixedSizeData(RemoteDataZMQ(ipc), 4)
    assert [[int(n) for (n,) in ds] for _ in range(3)] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 0, 1],
    ]


def test_two_endpoints(ipc: str, serve: Serve) -> None:
    tcp = f"tcp://127.0.0.1:{free_port()}"
    serve(DataFromList([("a", i) for i in range(9)]), ipc, name="a")
    serve(DataFromList([("b", i) for i in range(9)]), tcp, name="b")
    ds = RemoteDataZMQ(tcp, ipc, producers=2)
    assert sorted(ds) == [(name, i) for name in "ab" for i in range(9)]
    assert {name: counts.datapoints for name, counts in ds.counts.items()} == {"a": 9, "b": 9}


def test_producers_may_listen(ipc: str, serve: Serve) -> None:
    tcp = f"tcp://127.0.0.1:{free_port()}"
    serve(DataFromList([("a", i) for i in range(9)]), ipc, name="a", bind=True)
    serve(DataFromList([("b", i) for i in range(9)]), tcp, name="b", bind=True)
    ds = RemoteDataZMQ(tcp, ipc, bind=False, producers=2)
    for _ in range(2):
        assert sorted(ds) == [(name, i) for name in "ab" for i in range(9)]


def test_a_listening_producer_serves_one_consumer(
    ipc: str, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    serve(RepeatedData(DataFromList([(i,) for i in range(9)])), ipc, bind=True)
    first = RemoteDataZMQ(ipc, bind=False).iterate()
    assert next(first) == (0,)
    # Another process would not take over as a second pass in this one does.
    second = RemoteDataZMQ(f"ipc://{Path(ipc[6:]).parent}/./s", bind=False, timeout_s=1).iterate()
    with pytest.raises(WorkerError):
        next(second)
    assert "a serves another consumer at present" in caplog.text
    assert [next(first)[0] for _ in range(10)] == [1, 2, 3, 4, 5, 6, 7, 8, 0, 1]
    first.close()
    assert next(second) == (0,)
    second.close()


def test_the_function_returns_when_all_is_acknowledged(ipc: str) -> None:
    ds = RemoteDataZMQ(ipc)
    flow = DataFromList([(i,) for i in range(20)])
    thread = threading.Thread(
        target=send_dataflow_zmq, args=(flow, ipc), kwargs={"passes": 2, "progress": False}
    )
    thread.start()
    got = []
    for dp in ds:
        assert thread.is_alive()
        got.append(dp)
    assert got == [(i,) for i in range(20)] * 2
    thread.join(5)
    assert not thread.is_alive()


def test_the_function_raises_what_the_flow_raises(ipc: str) -> None:
    raised: list[Exception] = []

    def bad(dp: tuple[int]) -> tuple[int]:
        raise KeyError("no such image")

    def run() -> None:
        try:
            send_dataflow_zmq(MapData(DataFromList([(1,)]), bad), ipc)
        except DataFlowError as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    with pytest.raises(DataFlowError, match="no such image"):
        next(RemoteDataZMQ(ipc).iterate())
    thread.join(5)
    assert "no such image" in str(raised[0])


def test_what_cannot_be_packed_is_an_error_and_no_pickle(ipc: str, serve: Serve) -> None:
    serve(DataFromList([(object(),)]), ipc)
    with pytest.raises(DataFlowError, match="object cannot be packed"):
        next(RemoteDataZMQ(ipc).iterate())


def test_datapoints_too_large_for_the_consumer_are_an_error(ipc: str, serve: Serve) -> None:
    serve(DataFromList([(np.zeros(100_000, np.uint8),)]), ipc)
    with pytest.raises(DataFlowError, match="100,000 bytes is too large") as caught:
        next(RemoteDataZMQ(ipc, max_nbytes=50_000).iterate())
    assert "max_nbytes" in str(caught.value)


def test_a_new_pass_ends_the_old_one(ipc: str, serve: Serve) -> None:
    serve(DataFromList([(i,) for i in range(50)]), ipc)
    ds = RemoteDataZMQ(ipc)
    old = ds.iterate()
    assert next(old) == (0,)
    assert next(ds.iterate()) == (0,)
    with pytest.raises(DataFlowError, match="another pass over the same address has begun"):
        next(old)
    # Where it was can still be said.
    assert next(ds.iterate(state=old.state())) == (1,)


def test_another_thread_may_close(ipc: str) -> None:
    iterator = RemoteDataZMQ(ipc).iterate()
    raised: list[str] = []

    def run() -> None:
        try:
            next(iterator)
        except DataFlowError as error:
            raised.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.3)
    with stopwatch() as watch:
        iterator.close()
        thread.join(60)
    assert watch.seconds < 2
    assert "it was closed" in raised[0]


def test_another_process_is_told(ipc: str, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(DataFromList([(i,) for i in range(50)]), ipc)
    iterator = RemoteDataZMQ(ipc).iterate()
    next(iterator)
    with monkeypatch.context() as patched:
        patched.setattr(os, "getpid", lambda: -1)
        with pytest.raises(DataFlowError, match="begun in another process"):
            for _ in range(50):
                next(iterator)


def test_a_fork_is_told_at_once(ipc: str, serve: Serve) -> None:
    serve(DataFromList([(i,) for i in range(3000)]), ipc, hwm=200)
    ds = RemoteDataZMQ(ipc, producers=["a"], hwm=200)
    iterator = ds.iterate()
    got = [next(iterator) for _ in range(600)]
    assert ds._latest is not None
    while not ds._latest[0].peers["a"].inbox:  # datapoints that it could hand on
        got.append(next(iterator))
    reader, writer = multiprocessing.Pipe(duplex=False)

    def child() -> None:
        try:
            next(iterator)
        except DataFlowError as error:
            writer.send(error.what)
        iterator.close()

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    assert reader.poll(10)
    assert "begun in another process" in reader.recv()
    process.join(10)
    assert process.exitcode == 0
    assert [*got, *iterator] == [(i,) for i in range(3000)]


def test_small_datapoints_fit_where_frames_must_be_short(ipc: str, serve: Serve) -> None:
    flow = DataFromList([(i, bytes([i]) * 900, "ä" * 5) for i in range(200)])
    serve(flow, ipc, hwm=100)
    ds = RemoteDataZMQ(ipc, producers=["a"], hwm=100, max_nbytes=1024, timeout_s=10)
    assert list(ds) == list(flow)
    assert ds.counts["a"].starts == 1


def test_an_address_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_post, "_BIND_PATIENCE_S", 0.2)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ds = RemoteDataZMQ(f"tcp://127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(DataFlowError, match="is in use"):
            next(ds.iterate())
    with pytest.raises(ConfigError, match="cannot be opened"):
        next(RemoteDataZMQ(f"ipc://{tmp_path}/{'x' * 200}").iterate())


def test_a_socket_that_is_listened_at_is_not_taken_over(
    ipc: str, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_post, "_BIND_PATIENCE_S", 0.2)
    serve(RepeatedData(pipeline()), ipc)
    first = RemoteDataZMQ(ipc).iterate()
    next(first)
    with pytest.raises(DataFlowError, match="is in use"):
        Post([ipc], bind=True, keys=None, hwm=4, max_nbytes=1000)
    assert len([next(first) for _ in range(200)]) == 200
    first.close()


def test_nothing_is_left(serve: Serve, tmp_path: Path) -> None:
    tcp = f"tcp://127.0.0.1:{free_port()}"
    ipc = f"ipc://{tmp_path}/s"
    serve(RepeatedData(pipeline()), tcp)
    ds = RemoteDataZMQ(tcp, ipc)

    def pass_() -> None:
        for _ in zip(range(5), ds, strict=False):
            pass

    def held() -> tuple[int, int]:
        gc.collect()
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    pass_()
    before = held()
    for _ in range(5):
        pass_()
    assert held() == before
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(tcp.rpartition(":")[2]))) != 0


def test_flows_travel(ipc: str, serve: Serve) -> None:
    serve(DataFromList([(i,) for i in range(5)]), ipc)
    ds = RemoteDataZMQ(ipc, producers=["a"])
    list(ds)
    for travel in (pickle, cloudpickle):
        copy = travel.loads(travel.dumps(ds))
        assert copy.counts == {} and copy.dropped == {}
        assert len(list(copy)) == 5
        assert copy.counts["a"].datapoints == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hwm": 0}, "let nothing through"),
        ({"ordered": True}, "who takes turns"),
        ({"producers": 0}, "neither how many"),
        ({"producers": "ab"}, "neither how many"),
        ({"producers": ["a", "a"]}, "neither how many"),
        ({"producers": True}, "neither how many"),
        ({"max_nbytes": 10}, "too small"),
    ],
)
def test_arguments_that_make_no_sense(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RemoteDataZMQ("inproc://x", **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"format": "zmq_ops"}, "no format="),
        ({"format": "pickle"}, "never as pickles"),
        ({"hwm": 0}, "let nothing through"),
        ({"name": ""}, "1 to 200 characters"),
        ({"passes": 0}, "repeated 0 times"),
        ({"seed": -1}, "out of range"),
    ],
)
def test_sending_with_arguments_that_make_no_sense(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        send_dataflow_zmq(DataFromList([(1,)]), "inproc://x", **arguments)


@pytest.mark.parametrize(
    "damage",
    [
        {"turn": ""},
        {"turn": "", "producers": {"a": {}}},
        {"turn": "", "producers": {"a": 3}},
        {
            "turn": "",
            "producers": {
                "a": {"handed": 1, "base": 2, "state": b"", "ended": False, "signature": b""}
            },
        },
        [],
    ],
)
def test_damaged_states(damage: object) -> None:
    ds = RemoteDataZMQ("inproc://x")
    state = {**ds.iterate(seed=1).state(), "at": damage}
    with pytest.raises(StateError, match="structure of this pipeline"):
        ds.iterate(state=state)


def test_it_says_what_it_is() -> None:
    ds = RemoteDataZMQ("ipc:///tmp/x", "tcp://127.0.0.1:5")
    assert str(ds) == "RemoteDataZMQ(ipc:///tmp/x, tcp://127.0.0.1:5)"
    with pytest.raises(TypeError, match="length"):
        len(ds)


@pytest.mark.parametrize("over", ["ended", "given up", "killed"])
@pytest.mark.parametrize("bind", [True, False])
def test_a_new_pass_begins_at_once(
    ipc: str, serve: Serve, monkeypatch: pytest.MonkeyPatch, bind: bool, over: str
) -> None:
    """Nothing that is said again every now and then is waited for."""
    interval_s = 40.0
    for module, name in (
        (_producer, "_BEAT_S"),
        (_producer, "_HELLO_S"),
        (_consumer, "_BEAT_S"),
        (_consumer, "_TICK_S"),
    ):
        monkeypatch.setattr(module, name, interval_s)
    serve(DataFromArrays(np.arange(30)), ipc, bind=not bind)
    ds = RemoteDataZMQ(ipc, hwm=4, bind=bind, producers=1)
    begin = time.monotonic()
    for _ in range(3):
        iterator = ds.iterate(seed=1)
        taken = list(islice(iterator, 10 if over != "ended" else 99))
        assert [int(n) for (n,) in taken] == list(range(30))[: len(taken)]
        if over == "killed":
            stream = iterator._stream
            assert isinstance(stream, RemoteStream) and stream._consumer is not None
            stream._consumer._sessions.clear()  # so that no producer is told
        iterator.close()
    assert time.monotonic() < begin + interval_s / 2
