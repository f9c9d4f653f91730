"""Data of other processes and machines, as a flow."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from towerpack._core.errors import ConfigError, DataFlowError, WorkerError
from towerpack._core.logs import get_logger
from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow._flow import Place, Stage
from towerpack.dataflow._stream import State, Stream
from towerpack.dataflow.remote._address import Keys, check_address
from towerpack.dataflow.remote._consumer import Consumer, Wish, plain
from towerpack.dataflow.remote._peer import Event, Peer, ProducerCounts
from towerpack.dataflow.remote._post import Post
from towerpack.dataflow.remote._protocol import Kind
from towerpack.dataflow.remote._roster import Roster

log = get_logger(__name__)

# How long one look at the sockets lasts: close() from another thread waits for it.
_SLICE_S: Final = 0.1
_REPORT_S: Final = 30.0
# A slice that takes longer was a pause of this process or of its machine.
_LONGEST_SLICE_S: Final = 0.5

_open_lock: Final = threading.Lock()
_open_streams: Final[weakref.WeakValueDictionary[str, RemoteStream]] = weakref.WeakValueDictionary()


class RemoteDataZMQ(Stage):
    """Datapoints that `send_dataflow_zmq` sends, from any number of processes.

    A pass asks every producer for a pass of its flow, and hands on what comes. Connections may
    break and producers be killed and started again: no datapoint is lost or comes twice, because
    the consumer knows how far each has come, and tells it where to go on. In `state()` that is
    saved too. One pass runs at a time: beginning another one in this process ends it.

    Contract: each producer's datapoints in order; among producers by arrival, or with `ordered` in
    turns; unknown length; a function of (seed, epoch) for one producer or with `ordered`, if the
    producers' flows are; not for several threads at a time, but `close()` may come from another;
    a fork must not use what its parent has opened; resumable, each producer at its position.

    Args:
        addr1: `tcp://host:port`, `ipc://path` or `inproc://name`.
        addr2: A second one, for example one for this machine and one for others.
        hwm: How many datapoints each producer may be ahead.
        bind: Listen at the addresses, so that producers connect. Otherwise each address is that of
            one producer that listens.
        keys: The folder of `generate_keys`, or one secret file in it. Needed for addresses that
            other machines reach.
        ordered: Take one datapoint of each producer in turn, by their names. Needs `producers`.
        producers: How many there are, or their names: others are refused, and a pass is over when
            these have ended. Otherwise all are welcome, and a pass is over when all that came have
            ended.
        timeout_s: Raise when no datapoint has come for so long; a pause of this process, as of a
            machine that sleeps, does not count. By default that is only logged.
        max_nbytes: Whoever sends a longer frame is disconnected.

    Raises:
        WorkerError: Nothing came for `timeout_s`; raised while iterating. `next` waits again.
        DataFlowError: A producer's flow raised; its traceback is in the error. `next` asks for the
            same datapoint again.
    """

    random = True

    def __init__(
        self,
        addr1: str,
        addr2: str | None = None,
        hwm: int = 50,
        bind: bool = True,
        *,
        keys: Keys = None,
        ordered: bool = False,
        producers: int | Sequence[str] | None = None,
        timeout_s: float | None = None,
        max_nbytes: int = 1 << 30,
    ) -> None:
        self.addresses = (addr1,) if addr2 is None else (addr1, addr2)
        self.hwm = hwm
        self.bind = bind
        self.keys = keys
        self.ordered = ordered
        self.producers = _checked_producers(producers)
        self.timeout_s = timeout_s
        self.max_nbytes = max_nbytes
        self._latest: tuple[Roster, Counter[str]] | None = None
        for address in self.addresses:
            check_address(address, keys)
        if hwm < 1:
            raise ConfigError(f"hwm={hwm} would let nothing through.", expected="1 or more")
        if max_nbytes < 1024:
            raise ConfigError(f"max_nbytes={max_nbytes} is too small.", expected="1024 or more")
        if ordered and producers is None:
            raise ConfigError(
                "ordered=True has to know who takes turns.",
                fix="producers=2, or their names: producers=['a', 'b']",
            )

    def arguments(self) -> str:
        return ", ".join(self.addresses)

    def identity(self) -> str:
        return "ordered" if self.ordered else ""

    def open(self, place: Place, epoch: int, state: State) -> Stream:
        roster, dropped = Roster(self.producers, self.ordered, state), Counter[str]()
        self._latest = roster, dropped
        return RemoteStream(
            self, roster, dropped, Wish(epoch, place.key(self), self.hwm, self.max_nbytes)
        )

    @property
    def counts(self) -> dict[str, ProducerCounts]:
        """What came from each producer in the latest pass, running or over."""
        roster = self._latest[0] if self._latest is not None else Roster(None, False, None)
        return {name: peer.counts for name, peer in roster.peers.items()}

    @property
    def dropped(self) -> dict[str, int]:
        """How many messages were dropped in that pass, by reason."""
        return dict(self._latest[1]) if self._latest is not None else {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_latest": None}


def _after_fork() -> None:
    for stream in set(_open_streams.values()):
        stream.leave_to_parent()


os.register_at_fork(after_in_child=_after_fork)


class RemoteStream(Stream):
    """One pass. The sockets are opened by the first `next`."""

    def __init__(
        self,
        flow: RemoteDataZMQ,
        roster: Roster,
        dropped: Counter[str],
        wish: Wish,
        *,
        connect: Callable[..., Post] = Post,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._flow = flow
        self._wish = wish
        self._roster = roster
        self._dropped = dropped
        self._connect = connect
        self._clock = clock
        self._consumer: Consumer | None = None
        # Held while `next` runs, so that `close` can come from another thread.
        self._lock = threading.Lock()
        self._closing = ""
        self._pid = os.getpid()

    def __next__(self) -> Datapoint:
        with self._lock:
            while True:
                peer = self._roster.ready()
                if peer is None:
                    if self._roster.over():
                        self._close_sockets()
                        raise StopIteration
                    self._wait()
                    continue
                consumer = self._consumer
                if consumer is None or self._closing:
                    consumer = self._opened()
                arrival = peer.hand()
                if type(arrival) is not Event:
                    if peer.handed >= peer.credit_due:
                        consumer.credit(peer)
                    if self._flow.ordered:
                        self._roster.handed(peer)
                    return arrival
                consumer.finish(peer, ended=arrival.kind is Kind.END)
                if arrival.kind is Kind.ERROR:
                    raise _remote_error(peer, arrival)

    def state(self) -> State:
        return self._roster.state()

    def close(self, why: str = "it was closed") -> None:
        self._closing = self._closing or why
        with self._lock:
            self._close_sockets()
            self._roster.forget()

    def _wait(self) -> None:
        """Until something is ready, or the pass is over."""
        consumer = self._opened()
        before, waited_s, report_s = self._clock(), 0.0, _REPORT_S
        timeout = self._flow.timeout_s
        while not self._roster.over():
            consumer.pump(_SLICE_S)
            if self._roster.has_news():
                return
            self._check_closing()
            # Nothing was read in a pause: what came in it, or who went, is known a little later.
            now = self._clock()
            waited_s += min(now - before, _LONGEST_SLICE_S)
            before = now
            if timeout is not None and waited_s > timeout:
                raise WorkerError(
                    f"No datapoint has come for {timeout:g} s.",
                    got="\n".join(self._roster.missing()) or "no producer",
                    fix="see whether the producers run and reach "
                    f"{' and '.join(self._flow.addresses)}; next() waits again",
                )
            if waited_s > report_s:
                report_s = waited_s + _REPORT_S
                log.warning(
                    "%s: no datapoint for %.0f s. %s",
                    self._flow,
                    waited_s,
                    "; ".join(self._roster.missing()),
                )

    def leave_to_parent(self) -> None:
        """In a fork: the sockets are the parent's, and what has come is its to hand on."""
        self._closing = self._closing or "it was begun in another process"
        self._consumer = None
        self._lock = threading.Lock()

    def _opened(self) -> Consumer:
        self._check_closing()
        if os.getpid() != self._pid:
            raise DataFlowError(
                "This pass over remote data was begun in another process.",
                fix="begin it in the process that uses it: flow.iterate()",
            )
        if self._consumer is None:
            self._take_over()
            flow = self._flow
            post = self._connect(
                flow.addresses,
                bind=flow.bind,
                keys=flow.keys,
                hwm=flow.hwm,
                max_nbytes=flow.max_nbytes,
            )
            self._consumer = Consumer(post, self._roster, self._wish, self._dropped, self._clock)
        return self._consumer

    def _take_over(self) -> None:
        """End another pass over the same addresses; an abandoned iterator is one."""
        with _open_lock:
            others = {_open_streams.get(address) for address in self._flow.addresses}
            for address in self._flow.addresses:
                _open_streams[address] = self
        for other in others - {None, self}:
            if other is not None:
                other.close("another pass over the same address has begun")

    def _check_closing(self) -> None:
        if self._closing:
            raise DataFlowError(
                f"This pass over remote data is over: {self._closing}.",
                fix="begin a new one, from its state() if it is to continue: flow.iterate(state=)",
            )

    def _close_sockets(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def __del__(self) -> None:
        # An iterator that was left by `break`. At the interpreter's end half of it may be gone.
        with contextlib.suppress(Exception):
            self.close()


def _checked_producers(producers: int | Sequence[str] | None) -> int | tuple[str, ...] | None:
    if producers is None:
        return None
    if isinstance(producers, int) and not isinstance(producers, bool) and producers > 0:
        return producers
    if isinstance(producers, Sequence) and not isinstance(producers, str):
        names = tuple(producers)
        if names and len(set(names)) == len(names):
            return names
    raise ConfigError(
        f"producers={producers!r} says neither how many there are nor who.",
        expected="a number from 1 on, or different names in a list",
    )


def _remote_error(peer: Peer, arrival: Event) -> DataFlowError:
    facts = {key: plain(str(arrival.facts.get(key))) for key in ("type", "what", "traceback")}
    return DataFlowError(
        f"The flow of producer {peer.name!r} raised {facts['type']} at datapoint {peer.handed}: "
        f"{facts['what']}",
        fix="see the producer's traceback below; next() asks for this datapoint again",
        details=f"--- traceback of {peer.name} ---\n{facts['traceback']}",
    )
