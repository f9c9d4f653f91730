"""A network in memory that loses, repeats and delays messages, and its own clock."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from towerpack.dataflow import DataFlow, RepeatedData
from towerpack.dataflow.remote._post import GoneError, Route
from towerpack.dataflow.remote._producer import Producer
from towerpack.dataflow.remote._progress import Progress
from towerpack.dataflow.remote._remote import RemoteDataZMQ, RemoteStream
from towerpack.dataflow.remote._roster import Roster

Frames = list[memoryview]


class Network:
    """One consumer that binds, and producers that connect.

    Args:
        seed: Of all mischief.
        lose: The share of messages that get lost.
        repeat: The share that comes twice.
        delay: The share that comes later than others sent after it.
    """

    def __init__(
        self, seed: int = 0, *, lose: float = 0.0, repeat: float = 0.0, delay: float = 0.0
    ) -> None:
        self.random = random.Random(seed)
        self.lose, self.repeat, self.delay = lose, repeat, delay
        self.now = 100.0
        self.producers: dict[bytes, tuple[Producer, deque[Frames]]] = {}
        self.to_consumer: deque[tuple[Route, Frames]] = deque()
        self.failed: list[BaseException] = []
        self.most_waiting = 0
        self._peers = 0

    def clock(self) -> float:
        self.now += 1e-5
        return self.now

    def start(self, flow: DataFlow, name: str, **options: Any) -> bytes:
        """A producer's process begins."""
        self._peers += 1
        peer = b"peer %d" % self._peers
        inbox: deque[Frames] = deque()
        passes = options.pop("passes", 1)
        settings = {"hwm": 5, "exact": True, "seed": None, "stay": False, **options}
        producer = Producer(
            RepeatedData(flow, passes),
            _ProducerPost(self, peer, inbox),  # type: ignore[arg-type]
            name=name,
            progress=Progress(False),
            clock=self.clock,
            **settings,
        )
        self.producers[peer] = producer, inbox
        return peer

    def kill(self, peer: bytes) -> None:
        """It is gone without a word, with what was on its way to it."""
        del self.producers[peer]

    def run(self) -> None:
        """Let every producer do something."""
        self.now += 0.05
        if self.now > 20_000:
            raise TimeoutError("the simulated world waits for ever")
        for peer, (producer, _) in list(self.producers.items()):
            try:
                for _ in range(self.random.randrange(4)):
                    producer.step()
            except Exception as error:
                self.failed.append(error)
                self.kill(peer)
            else:
                if producer._done:
                    if producer._error is not None:
                        self.failed.append(producer._error)
                    self.kill(peer)

    def kill_consumer(self, stream: RemoteStream) -> None:
        """It is gone without a word."""
        stream._consumer = None

    def stream(self, flow: RemoteDataZMQ, state: Any = None, *, epoch: int = 0) -> RemoteStream:
        """One pass of the consumer's."""
        from collections import Counter

        from towerpack.dataflow.remote._consumer import Wish

        self.to_consumer.clear()
        roster, dropped = Roster(flow.producers, flow.ordered, state), Counter[str]()
        flow._latest = roster, dropped
        return RemoteStream(
            flow,
            roster,
            dropped,
            Wish(epoch, 1, flow.hwm, flow.max_nbytes),
            connect=lambda *_, **__: _ConsumerPost(self),
            clock=self.clock,
        )

    def carry(self, queue: deque[Any], message: Any) -> None:
        if self.random.random() < self.lose:
            return
        place = len(queue)
        if queue and self.random.random() < self.delay:
            place = self.random.randrange(len(queue))
        queue.insert(place, message)
        if self.random.random() < self.repeat:
            queue.append(message)


def _copied(frames: Sequence[Any]) -> Frames:
    return [memoryview(bytearray(frame)) for frame in frames]


class _ProducerPost:
    bind = connected = False

    def __init__(self, network: Network, peer: bytes, inbox: deque[Frames]) -> None:
        self._network, self._peer, self._inbox = network, peer, inbox

    def routes(self) -> list[Route]:
        return [Route(0, b"")]

    def receive(self) -> tuple[Route, Frames] | None:
        return (Route(0, b""), self._inbox.popleft()) if self._inbox else None

    def send(self, route: Route, frames: Sequence[Any]) -> bool:
        network = self._network
        network.carry(network.to_consumer, (Route(0, self._peer), _copied(frames)))
        network.most_waiting = max(network.most_waiting, len(network.to_consumer))
        return True

    def keep(self, data: Any) -> Any:
        return bytes(data)

    def admit(self) -> None: ...


class _ConsumerPost:
    bind = True
    refused = 0

    def __init__(self, network: Network) -> None:
        self._network = network

    def routes(self) -> list[Route]:
        return []

    def receive(self) -> tuple[Route, Frames] | None:
        waiting = self._network.to_consumer
        return waiting.popleft() if waiting else None

    def send(self, route: Route, frames: Sequence[Any]) -> bool:
        found = self._network.producers.get(route.peer)
        if found is None:
            # As with libzmq: a route ends when all that came on it was read.
            if any(other == route for other, _ in self._network.to_consumer):
                return True
            raise GoneError
        self._network.carry(found[1], _copied(frames))
        return True

    def wait(self, seconds: float) -> None:
        self._network.run()

    def admit(self) -> None: ...

    def close(self, **_: Any) -> None: ...


def take(iterator: Iterator[Any], count: int) -> list[Any]:
    """The next so many."""
    return [next(iterator) for _ in range(count)]
