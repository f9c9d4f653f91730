from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from towerpack._core.errors import ConfigError, DataFlowError, FormatError, StateError, WorkerError
from towerpack._core.extras import require
from towerpack._core.logs import get_logger
from towerpack.dataflow._compile import Stage
from towerpack.dataflow._iteration_state import State, Stream
from towerpack.dataflow.arguments import integer_of
from towerpack.dataflow.datapoints import Datapoint
from towerpack.dataflow.formats._wire import unpack_frames
from towerpack.dataflow.remote._keys import Keys
from towerpack.dataflow.remote._protocol import (
    REPORT_S,
    SLICE_S,
    Kind,
    Message,
    check_address,
    parse,
    socket_at,
)
from towerpack.dataflow.stage_context import StageContext

log = get_logger(__name__)

_SMALL_FRAME: Final = 1 << 16
_MOST_REASONS: Final = 100

_open_lock: Final = threading.Lock()
_open_streams: Final[weakref.WeakValueDictionary[str, RemoteStream]] = weakref.WeakValueDictionary()


@dataclass
class ProducerCounts:
    """Counters of one producer in one pass.

    Attributes:
        datapoints: Number of datapoints received.
        nbytes: Size of these datapoints in bytes.
        lost: Number of datapoints that were sent but not received, because a connection broke.
        starts: Number of times that the producer started.
    """

    datapoints: int = 0
    nbytes: int = 0
    lost: int = 0
    starts: int = 0


class RemoteDataZMQ(Stage):
    """Receive the datapoints that any number of processes send by `send_dataflow_zmq`.

    The datapoints of one producer stay in order; datapoints of several producers are mixed as they
    arrive. The length is unknown, and seeds have no effect. Messages in transit are lost when a
    process ends, and a resumed pass continues with new messages. A new pass in this process ends
    the running pass. One thread may iterate, and another thread may call `close()`. A fork must not
    use an open pass.

    Args:
        addr1: Address: `tcp://host:port`, `ipc://path` or `inproc://name`.
        addr2: Second address, for example for other machines.
        hwm: Maximum number of waiting datapoints of each producer on this side.
        bind: Whether to listen at the addresses. Otherwise one producer listens at each address.
        keys: Folder created by `generate_keys`, or one secret file in it. Required for addresses
            that other machines can reach.
        producers: Number or names of the producers. Others are ignored, and a pass ends when these
            producers have ended. By default, a pass ends when all producers that have sent data
            have ended.
        timeout_s: Seconds without a datapoint after which an error is raised. By default, waiting
            is only logged.
        max_nbytes: Maximum size of a frame in bytes. Producers of larger frames are disconnected.

    Attributes:
        counts: Counters of the latest pass, by name of the producer.
        dropped: Number of messages that were dropped in the latest pass, by reason.

    Raises:
        ConfigError: An argument is invalid.
        WorkerError: No datapoint arrived within `timeout_s`; raised while iterating.
        DataFlowError: The flow of a producer raised; raised while iterating.
    """

    def __init__(
        self,
        addr1: str,
        addr2: str | None = None,
        hwm: int = 50,
        bind: bool = True,
        *,
        keys: Keys = None,
        producers: int | Sequence[str] | None = None,
        timeout_s: float | None = None,
        max_nbytes: int = 1 << 30,
    ) -> None:
        self.addresses = (addr1,) if addr2 is None else (addr1, addr2)
        self.hwm = integer_of(hwm, "hwm", 1)
        self.bind = bind
        self.keys = keys
        self.producers = _checked_producers(producers)
        self.timeout_s = timeout_s
        self.max_nbytes = integer_of(max_nbytes, "max_nbytes", 1024)
        self.counts: dict[str, ProducerCounts] = {}
        self.dropped: Counter[str] = Counter()
        for address in self.addresses:
            check_address(address, keys)

    def arguments(self) -> str:
        return ", ".join(self.addresses)

    def open(self, context: StageContext, epoch: int, state: State) -> Stream:
        del context, epoch
        if state is not None and not isinstance(state, int):
            raise StateError(f"A saved state of remote data must be a number, got {state!r:.200}.")
        self.counts, self.dropped = {}, Counter()
        return RemoteStream(self, state or 0)


class RemoteStream(Stream):
    """Pass over remote data. The first call of `next` opens the socket."""

    def __init__(self, flow: RemoteDataZMQ, handed: int) -> None:
        self._flow, self._handed = flow, handed
        self._counts, self._dropped = flow.counts, flow.dropped
        # Run and number of the next datapoint of each producer.
        self._next: dict[str, tuple[bytes, int]] = {}
        self._ended: set[str] = set()
        self._ready: deque[Datapoint] = deque()
        self._open = contextlib.ExitStack()
        self._link: Any = None
        # Held while `next` runs, so that `close` can come from another thread.
        self._lock = threading.Lock()
        self._closing = ""
        self._pid = os.getpid()

    def __next__(self) -> Datapoint:
        if os.getpid() != self._pid:
            raise _over("it was begun in another process")
        with self._lock:
            while not self._ready:
                if self._is_over():
                    self._open.close()
                    raise StopIteration
                self._handle(self._received())
            self._handed += 1
            return self._ready.popleft()

    def state(self) -> State:
        return self._handed

    def close(self, why: str = "it was closed") -> None:
        self._closing = self._closing or why
        if os.getpid() == self._pid:
            with self._lock:
                self._open.close()

    def _is_over(self) -> bool:
        wanted = self._flow.producers
        if isinstance(wanted, int):
            return len(self._ended) >= wanted
        return self._ended.issuperset(wanted or self._next) and bool(self._ended)

    def _handle(self, message: Message) -> None:
        kind, run, number, name, frames = message
        if not self._is_welcome(name):
            self._drop(f"{name!r} is not one of producers={self._flow.producers!r}")
            return
        try:
            datapoints = _unpacked(frames) if kind is Kind.DATA else []
        except FormatError as error:
            self._drop(f"damaged: {error.what}")
            return
        counts = self._counts.setdefault(name, ProducerCounts())
        before, expected = self._next.get(name, (b"", 0))
        if run != before:
            counts.starts, expected = counts.starts + 1, 0
            self._ended.discard(name)
        # Only if the run began in this pass; others are in the middle of their numbers.
        if number > expected and before:
            counts.lost += number - expected
            log.warning("%d datapoints of %s are lost.", number - expected, name)
        self._next[name] = run, number + len(datapoints)
        self._ready.extend(datapoints)
        counts.datapoints += len(datapoints)
        counts.nbytes += sum(len(frame) for frame in frames)
        if kind is not Kind.DATA:
            self._ended.add(name)
        if kind is Kind.ERROR:
            raise _remote_error(name, number, frames)

    def _is_welcome(self, name: str) -> bool:
        wanted = self._flow.producers
        if isinstance(wanted, int):
            return name in self._next or len(self._next) < wanted
        return wanted is None or name in wanted

    def _drop(self, why: str) -> None:
        if len(self._dropped) >= _MOST_REASONS and why not in self._dropped:
            why = "for other reasons"  # Peers determine some of the texts.
        if not self._dropped[why]:
            log.warning("%s: messages are dropped: %s", self._flow, why)
        self._dropped[why] += 1

    def _received(self) -> Message:
        zmq: Any = require("zmq", extra="remote", needed_for="Remote data")
        if self._closing:
            raise _over(self._closing)
        if self._link is None:
            self._link = self._opened()
        while True:
            try:
                frames = self._link.recv_multipart(zmq.NOBLOCK, copy=False)
                route, *frames = (frame.buffer for frame in frames)
                message = parse(frames)
                if message.kind is not Kind.DATA:  # the producer waits for an answer
                    with contextlib.suppress(zmq.Again):
                        self._link.send_multipart([route, b""], zmq.NOBLOCK)
                return message
            except FormatError as error:
                self._drop(error.what)
            except zmq.Again:
                self._wait()

    def _wait(self) -> None:
        begin, report_s = time.monotonic(), REPORT_S
        timeout = self._flow.timeout_s
        while not self._link.poll(1000 * SLICE_S):
            if self._closing:
                raise _over(self._closing) from None
            waited_s = time.monotonic() - begin
            if timeout is not None and waited_s > timeout:
                raise WorkerError(
                    f"No datapoint has arrived for {timeout:g} s.",
                    got=self._progress(),
                    fix="check that producers run and connect to "
                    f"{self._flow.arguments()}, that their keys match those of this receiver, and "
                    f"that frames are below max_nbytes={self._flow.max_nbytes}. "
                    "Call next() again to wait longer",
                ) from None
            if waited_s > report_s:
                report_s += REPORT_S
                message = "%s: no datapoint for %.0f s: %s"
                log.warning(message, self._flow, waited_s, self._progress())

    def _progress(self) -> str:
        wanted = self._flow.producers
        named = wanted if isinstance(wanted, tuple) else ()
        waiting = sorted({*self._next, *named} - self._ended)
        total = f" of {wanted}" if isinstance(wanted, int) else ""
        names = ", ".join(waiting) or "producers"
        return f"waiting for {names}; {len(self._next)}{total} connected so far"

    def _opened(self) -> Any:
        flow = self._flow
        with _open_lock:
            before = [_open_streams.get(address, self) for address in flow.addresses]
            _open_streams.update(dict.fromkeys(flow.addresses, self))
        for other in before:
            if other is not self:
                other.close("another pass over the same address has begun")
        options: Any = {"keys": flow.keys, "hwm": flow.hwm, "max_nbytes": flow.max_nbytes}
        link = socket_at("ROUTER", *flow.addresses, bind=flow.bind, **options)
        return self._open.enter_context(link)

    def __del__(self) -> None:
        # For iterators left by `break`. At exit of the interpreter, attributes may be missing.
        with contextlib.suppress(Exception):
            self.close()


def _over(why: str) -> DataFlowError:
    return DataFlowError(
        f"This pass over remote data has ended: {why}.", fix="start a new pass: flow.iterate()"
    )


def _unpacked(frames: Sequence[Any]) -> list[Datapoint]:
    # Small frames are unaligned slices of a larger buffer of libzmq.
    copies = [bytearray(f) if len(f) < _SMALL_FRAME else f for f in frames]
    datapoints: Any = unpack_frames(copies)
    if type(datapoints) is not list:
        raise FormatError("The message is not a list of datapoints.")
    return cast("list[Datapoint]", datapoints)


def _checked_producers(producers: int | Sequence[str] | None) -> int | tuple[str, ...] | None:
    if producers is None or (type(producers) is int and producers > 0):
        return producers
    names = tuple(producers) if isinstance(producers, Sequence) else ()
    if names and len(set(names)) == len(names) and not isinstance(producers, str):
        return names
    raise ConfigError(
        f"producers must be a positive number or a list of different names, got {producers!r}."
    )


def _remote_error(name: str, number: int, frames: Sequence[Any]) -> DataFlowError:
    texts = [bytes(frame).decode(errors="replace") for frame in frames]
    # Control characters could change the terminal.
    plain = ["".join(c if c.isprintable() or c == "\n" else "?" for c in text) for text in texts]
    kind, what, trace, *_ = [*plain, "", "", ""]
    return DataFlowError(
        f"The flow of producer {name!r} raised {kind} at datapoint {number}: {what}",
        fix="correct the flow of the producer, whose traceback follows",
        details=f"--- traceback of {name} ---\n{trace}",
    )
