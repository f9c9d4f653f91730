"""Peers that want to do harm, on the consumer's own socket."""

from __future__ import annotations

import contextlib
import random
import resource
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import numpy as np
import pytest
import zmq

from processes import free_port
from scaling import scaled
from towerpack.dataflow import DataFromList, MapData, RemoteDataZMQ
from towerpack.dataflow.formats._wire import pack_frames
from towerpack.dataflow.remote._post import Post
from towerpack.dataflow.remote._producer import Producer
from towerpack.dataflow.remote._progress import Progress
from towerpack.dataflow.remote._protocol import Kind, header, parse, with_facts

pytestmark = pytest.mark.timeout(60)
COUNT = scaled(400, at_least=200)

# A greeting of ZeroMQ's own protocol (ZMTP 3.0, no security), and the handshake that follows.
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
_READY = b"\x05READY\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
READY = b"\x04" + bytes([len(_READY)]) + _READY


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def good(port: int) -> Iterator[None]:
    """A producer that nothing is to disturb."""
    stopping = threading.Event()

    def slow(dp: tuple[int]) -> tuple[int, Any]:
        time.sleep(0.001)
        return dp[0], np.full(5000, dp[0])

    def loop() -> None:
        post = Post([f"tcp://127.0.0.1:{port}"], bind=False, keys=None, hwm=8, max_nbytes=1 << 26)
        flow = MapData(DataFromList([(i,) for i in range(COUNT)]), slow)
        options: dict[str, Any] = {"hwm": 8, "seed": None, "stay": True}
        producer = Producer(
            flow, post, name="good", exact=True, progress=Progress(False), **options
        )
        while not stopping.is_set():
            if not producer.step():
                post.wait(0.02)
        post.close(linger_s=0)

    thread = threading.Thread(target=loop)
    thread.start()
    yield
    stopping.set()
    thread.join()


def raw(port: int, random_: random.Random) -> None:
    """Bytes that are not ZeroMQ's, or begin so and end otherwise."""
    beginnings = [b"", GREETING[:11], GREETING, GREETING + READY, GREETING + READY]
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as peer:
        peer.settimeout(0.2)
        peer.sendall(random_.choice(beginnings))
        time.sleep(0.01)
        peer.sendall(random_.randbytes(random_.randrange(1, 3000)))


def huge(port: int, random_: random.Random) -> None:
    """A frame that is announced to have a terabyte."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as peer:
        peer.settimeout(0.2)
        peer.sendall(GREETING + READY)
        time.sleep(0.01)
        size = random_.choice([1 << 31, 1 << 40, (1 << 64) - 1])
        peer.sendall(b"\x02" + struct.pack(">Q", size) + bytes(1000))
        time.sleep(0.02)


@contextlib.contextmanager
def dealer(port: int) -> Iterator[Any]:
    context = zmq.Context()
    peer = context.socket(zmq.DEALER)
    peer.set(zmq.SNDTIMEO, 300)
    peer.set(zmq.RCVTIMEO, 300)
    peer.connect(f"tcp://127.0.0.1:{port}")
    try:
        yield peer
    finally:
        peer.close(0)
        context.term()


def garbage(port: int, random_: random.Random) -> None:
    """Messages of ZeroMQ's that are none of ours."""
    with dealer(port) as peer, contextlib.suppress(zmq.Again):
        for _ in range(30):
            count = random_.choice([1, 1, 2, 5, 1000])
            frames = [random_.randbytes(random_.randrange(100)) for _ in range(count)]
            if random_.random() < 0.5:
                frames[0] = header(random_.choice(list(Kind)), random_.randbytes(16), 5, 5)
            peer.send_multipart(frames)


def many_frames(port: int, random_: random.Random) -> None:
    """One message of very many frames."""
    with dealer(port) as peer, contextlib.suppress(zmq.Again):
        peer.send_multipart([header(Kind.DATA, bytes(16)), *[b""] * 20_000])
        time.sleep(0.1)


def other_version(port: int, random_: random.Random) -> None:
    """One that speaks a protocol of the future; it is told."""
    with dealer(port) as peer, contextlib.suppress(zmq.Again):
        peer.send_multipart([b"TPDF\x07" + header(Kind.BEAT)[5:]])
        answer = parse(peer.recv_multipart())
        assert "version 7" in answer.fact("why", str)


HELLO = {
    "name": "evil",
    "exact": True,
    "run": bytes(16),
    "room": 5,
    "pipeline": "\x1b[2Jx",
    "signature": b"",
}


def bad_hellos(port: int, random_: random.Random) -> None:
    """Introductions with wrong facts, and msgpack that claims more than there is."""
    with dealer(port) as peer, contextlib.suppress(zmq.Again):
        for fact in HELLO:
            for value in (None, -1, 1 << 63, "x" * 10_000, b"x" * 10_000, [], True):
                facts = {**HELLO, fact: value}
                if value is not True or fact != "exact":
                    peer.send_multipart(with_facts(header(Kind.HELLO), facts))
        for bomb in (b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff" * 50, b"\x91" * 100_000):
            peer.send_multipart([header(Kind.HELLO), bomb])
        peer.send_multipart([header(Kind.HELLO), msgpack.packb([1, 2])])
        with contextlib.suppress(zmq.Again):
            while True:  # replies may come, but no START
                assert parse(peer.recv_multipart()).kind is not Kind.START


def impostor(port: int, random_: random.Random) -> None:
    """Wants the good producer's place."""
    with dealer(port) as peer, contextlib.suppress(zmq.Again):
        peer.set(zmq.RCVTIMEO, 50)
        for _ in range(10):
            run = random_.randbytes(16)
            facts = {**HELLO, "name": "good", "run": run}
            peer.send_multipart(with_facts(header(Kind.HELLO), facts))
            with contextlib.suppress(zmq.Again):
                assert parse(peer.recv_multipart()).kind is not Kind.START


def bad_data(port: int, random_: random.Random) -> None:
    """Is let in, and then sends damaged, repeated and far-away datapoints."""
    with dealer(port) as peer, contextlib.suppress(zmq.Again):
        run = random_.randbytes(16)
        for _ in range(20):
            peer.send_multipart(with_facts(header(Kind.HELLO), {**HELLO, "run": run}))
            answer = parse(peer.recv_multipart())
            if answer.kind is Kind.START:
                break
        else:
            return
        session = answer.session
        whole = [bytes(frame) for frame in pack_frames((0, np.zeros(2000)))]
        for number in (answer.number + 1, 1 << 63, (1 << 64) - 1):
            peer.send_multipart([header(Kind.DATA, session, number), b"", *whole])
            peer.send_multipart([header(Kind.GROUP, session, number, 1 << 60), b"", whole[0]])
            peer.send_multipart([header(Kind.BEAT, session, number)])
        peer.send_multipart([header(Kind.DATA, session, answer.number), b"", whole[0][:-2]])
        peer.send_multipart([header(Kind.DATA, session, answer.number), b"", *whole])


Attack = Callable[[int, random.Random], None]
ATTACKS: list[Attack] = [
    raw,
    huge,
    garbage,
    many_frames,
    other_version,
    bad_hellos,
    impostor,
    bad_data,
]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_an_attack_disturbs_nobody(attack: Attack, port: int, good: None) -> None:
    random_ = random.Random(5)
    producers = ["good", "evil"] if attack is bad_data else ["good"]
    ds = RemoteDataZMQ(f"tcp://127.0.0.1:{port}", hwm=8, producers=producers, max_nbytes=1 << 20)
    iterator = ds.iterate(seed=1)
    got = [next(iterator)[0]]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    failed: list[BaseException] = []

    def attacking() -> None:
        try:
            for _ in range(scaled(3, at_least=2)):
                attack(port, random_)
        except BaseException as error:
            failed.append(error)

    attacker = threading.Thread(target=attacking)
    attacker.start()
    got += [next(iterator)[0] for _ in range(COUNT - 1)]
    attacker.join()
    assert got == list(range(COUNT))
    assert not failed
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB
    iterator.close()


def test_a_flood_is_dropped_and_logged_now_and_then(
    port: int, good: None, caplog: pytest.LogCaptureFixture
) -> None:
    ds = RemoteDataZMQ(f"tcp://127.0.0.1:{port}", hwm=8, producers=["good"])
    iterator = ds.iterate(seed=1)
    got = [next(iterator)[0]]
    stopping = threading.Event()

    def flood() -> None:
        with dealer(port) as peer, contextlib.suppress(zmq.Again):
            while not stopping.is_set():
                peer.send_multipart([b"x" * 50])

    flooder = threading.Thread(target=flood)
    flooder.start()
    got += [next(iterator)[0] for _ in range(COUNT - 1)]
    stopping.set()
    flooder.join()
    assert got == list(range(COUNT))
    assert ds.dropped["that made no sense"] > 100
    assert caplog.text.count("that made no sense") <= 2
    iterator.close()
