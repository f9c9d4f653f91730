"""Data of other processes and machines, as a flow."""

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
    """What came from one producer in one pass.

    Attributes:
        datapoints: Received.
        nbytes: Received in them.
        lost: Datapoints that it sent and that never came: a connection broke.
        starts: Times that it began to send: more than once if it was started again.
    """

    datapoints: int = 0
    nbytes: int = 0
    lost: int = 0
    starts: int = 0


class RemoteDataZMQ(Stage):
    """Datapoints that `send_dataflow_zmq` sends, from any number of processes.

    Contract: each producer's datapoints in order, those of several by arrival; unknown length; not
    a function of this side's seed; not for several threads at a time, but `close()` may come from
    another; a fork must not use what its parent has opened. What is on its way when a process ends
    is lost, and a pass that is resumed goes on with what comes. One pass runs at a time: beginning
    another one in this process ends it.

    Args:
        addr1: `tcp://host:port`, `ipc://path` or `inproc://name`.
        addr2: A second one, for example one for this machine and one for others.
        hwm: How many datapoints of each producer may wait on this side.
        bind: Listen at the addresses, so that producers connect. Otherwise each address is that of
            one producer that listens.
        keys: The folder of `generate_keys`, or one secret file in it. Needed for addresses that
            other machines reach.
        producers: How many there are, or their names: others are dropped, and a pass is over when
            these have ended. Otherwise all are welcome, and a pass is over when all that came have
            ended.
        timeout_s: Raise when no datapoint has come for so long. By default that is only logged.
        max_nbytes: Whoever sends a longer frame is disconnected.

    Attributes:
        counts: What came from each producer in the latest pass, running or over.
        dropped: How many messages were dropped in that pass, by reason.

    Raises:
        WorkerError: Nothing came for `timeout_s`; raised while iterating. `next` waits again.
        DataFlowError: A producer's flow raised; its traceback is in the error.
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

    def identity(self) -> str:
        return ""

    def open(self, context: StageContext, epoch: int, state: State) -> Stream:
        del context, epoch
        if state is not None and not isinstance(state, int):
            raise StateError(f"{state!r:.200} is no state of remote data.", expected="a number")
        self.counts, self.dropped = {}, Counter()
        return RemoteStream(self, state or 0)


class RemoteStream(Stream):
    """One pass. The socket is opened by the first `next`."""

    def __init__(self, flow: RemoteDataZMQ, handed: int) -> None:
        self._flow, self._handed = flow, handed
        self._counts, self._dropped = flow.counts, flow.dropped
        # Of each producer its run, and the number of the message that comes next.
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
            self._drop(f"from {name!r}, who is not of producers={self._flow.producers!r}")
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
        # Not of a producer that was here before this pass: it is somewhere in its numbers.
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
            why = "for other reasons"  # Peers choose some texts: names, what is damaged.
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
                if message.kind is not Kind.DATA:  # its producer waits for an answer
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
                    f"No datapoint has come for {timeout:g} s.",
                    got=self._who(),
                    fix=f"see whether producers run and reach {self._flow.arguments()}, whether "
                    f"their keys fit, and frames are below max_nbytes={self._flow.max_nbytes}; "
                    "next() waits again",
                ) from None
            if waited_s > report_s:
                report_s += REPORT_S
                log.warning("%s: no datapoint for %.0f s. %s", self._flow, waited_s, self._who())

    def _who(self) -> str:
        wanted = self._flow.producers
        named = wanted if isinstance(wanted, tuple) else ()
        waiting = sorted({*self._next, *named} - self._ended)
        total = f" of {wanted}" if isinstance(wanted, int) else ""
        return f"waiting for {', '.join(waiting) or 'producers'}; {len(self._next)}{total} came"

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
        # An iterator that was left by `break`. At the interpreter's end half of it may be gone.
        with contextlib.suppress(Exception):
            self.close()


def _over(why: str) -> DataFlowError:
    what = f"This pass over remote data is over: {why}."
    return DataFlowError(what, fix="begin a new one: flow.iterate()")


def _unpacked(frames: Sequence[Any]) -> list[Datapoint]:
    # Small frames are slices of a buffer of libzmq's: not aligned, and they keep all of it.
    own = [bytearray(one) if len(one) < _SMALL_FRAME else one for one in frames]
    datapoints: Any = unpack_frames(own)
    if type(datapoints) is not list:
        raise FormatError("It is no list of datapoints.")
    return cast("list[Datapoint]", datapoints)


def _checked_producers(producers: int | Sequence[str] | None) -> int | tuple[str, ...] | None:
    if producers is None or (type(producers) is int and producers > 0):
        return producers
    names = tuple(producers) if isinstance(producers, Sequence) else ()
    if names and len(set(names)) == len(names) and not isinstance(producers, str):
        return names
    raise ConfigError(
        f"producers={producers!r} says neither how many there are nor who.",
        expected="a number from 1 on, or different names in a list",
    )


def _remote_error(name: str, number: int, frames: Sequence[Any]) -> DataFlowError:
    texts = [bytes(frame).decode(errors="replace") for frame in frames]
    # Nothing that a terminal would obey.
    plain = ["".join(c if c.isprintable() or c == "\n" else "?" for c in text) for text in texts]
    kind, what, trace, *_ = [*plain, "", "", ""]
    return DataFlowError(
        f"The flow of producer {name!r} raised {kind} at datapoint {number}: {what}",
        fix="see the producer's traceback below",
        details=f"--- traceback of {name} ---\n{trace}",
    )
