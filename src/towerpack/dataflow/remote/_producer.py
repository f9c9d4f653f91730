"""The side that has the flow."""

from __future__ import annotations

import hashlib
import importlib
import secrets
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from towerpack._core.errors import (
    ConfigError,
    DataFlowError,
    FormatError,
    InternalError,
    StateError,
)
from towerpack._core.logs import get_logger
from towerpack._core.randomness import derive_seed
from towerpack.dataflow._flow import DataFlow, pipeline_of, signature_of
from towerpack.dataflow._iterator import DataIterator
from towerpack.dataflow.formats._wire import pack_frames
from towerpack.dataflow.remote._outbox import Outbox, Parcel
from towerpack.dataflow.remote._post import GoneError, Post, Route
from towerpack.dataflow.remote._progress import Progress
from towerpack.dataflow.remote._protocol import (
    NOBODY,
    Kind,
    Message,
    VersionError,
    header,
    parse,
    unpacked,
    with_facts,
)

log = get_logger(__name__)

_BEAT_S: Final = 1.0
_HELLO_S: Final = 0.2
_SLICE_S: Final = 0.1
# A flood must not keep a producer from producing.
_MOST_AT_ONCE: Final = 64
# States go with the data this often, but may not cost more than one part in twenty.
_STATE_EVERY_S: Final = 0.1
_STATE_SHARE: Final = 20
_MOST_STATE: Final = 1 << 25
_MOST_TEXT: Final = 1 << 16
# Datapoints up to this size may travel together, if the flow gives them so quickly that waiting for
# one another costs them nothing. After a slow one, so many must have been quick.
_SMALL_BYTES: Final = 1 << 14
_HOLD_S: Final = 0.002
_MOST_HELD: Final = 32
_QUICK: Final = 256
# How long a failed producer waits for a consumer to take note.
_LAST_WORDS_S: Final = 10.0


@dataclass
class _Session:
    """What the producer sends to one consumer.

    Attributes:
        over: Its end, or an error, is in the outbox.
        last: When that is acknowledged, the producer's work is done.
    """

    name: bytes
    consumer: bytes
    route: Route
    iterator: DataIterator | None
    outbox: Outbox
    limit: int
    max_nbytes: int
    over: bool = False
    last: bool = False
    state_due: float = 0.0


class Producer:
    """Serves a flow to one consumer after another.

    It keeps nothing that matters: where to begin is said by the consumer.

    Args:
        flow: What to send; one pass of it is one pass of the consumer's.
        post: Where the consumer is.
        name: What the consumer knows it by.
        exact: Another name will not do.
        hwm: Datapoints that may wait to be acknowledged.
        seed: Of the flow; by default a function of the consumer's seed and the name.
        stay: Serve further passes when one is over.
        progress: What is shown meanwhile.
        clock: Seconds that pass.
    """

    def __init__(
        self,
        flow: DataFlow,
        post: Post,
        *,
        name: str,
        exact: bool,
        hwm: int,
        seed: int | None,
        stay: bool,
        progress: Progress,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._flow = flow
        self._post = post
        self._name = name
        self._exact = exact
        self._hwm = hwm
        self._seed = seed
        self._stay = stay
        self._progress = progress
        self._clock = clock
        self._run = secrets.token_bytes(16)
        self._signature = hashlib.blake2b(signature_of(flow).encode(), digest_size=16).digest()
        self._session: _Session | None = None
        self._heeded: tuple[bytes, int] = (NOBODY, 0)
        self._failure: Exception | None = None
        self._failed_at = 0.0
        self._done = False
        self._blocked_at: float | None = None
        self._flushed_at = 0.0
        self._quick = 0
        self._tick_due = 0.0

    def run(self) -> None:
        """Serve until everything is sent and acknowledged, or the flow fails."""
        try:
            while not self._done:
                self._hear()
                self._tick()
                worked = self._work()
                if not worked and not self._done:
                    self._progress.show("waiting for the consumer")
                    self._post.wait(_SLICE_S)
        finally:
            self._close_session()
        if self._failure is not None:
            raise self._failure

    # ------------------------------------------------------------------ what arrives

    def _hear(self) -> None:
        for _ in range(_MOST_AT_ONCE):
            got = self._post.receive()
            if got is None:
                return
            route, frames = got
            try:
                self._heed(route, parse([frame.buffer for frame in frames]))
            except VersionError as error:
                self._say(route, with_facts(header(Kind.REFUSE), {"why": str(error)}))
            except FormatError as error:
                log.debug("A message was dropped: %s", error.what)

    def _heed(self, route: Route, message: Message) -> None:
        session = self._session
        if message.kind is Kind.START:
            self._start(route, message)
        elif message.kind is Kind.REFUSE:
            self._be_refused(message)
        elif message.kind is Kind.LOOK:
            self._greet(route, message.session)
        elif session is None or message.session != session.name:
            # One that a stopped session of the same consumer has left behind needs no answer.
            stale = session is not None and route == session.route
            if message.kind in (Kind.ACK, Kind.RESEND) and not stale:
                self._greet(route, NOBODY)
        elif message.kind in (Kind.ACK, Kind.RESEND):
            session.route = route
            self._acknowledged(session, message)
        elif message.kind is Kind.STOP:
            self._close_session()

    def _acknowledged(self, session: _Session, message: Message) -> None:
        session.outbox.acknowledge(message.number)
        session.limit = max(session.limit, message.limit)
        if message.kind is Kind.RESEND:
            session.outbox.rewind(message.number)
        if session.over and not session.outbox:
            self._done = session.last
            self._close_session()

    def _be_refused(self, message: Message) -> None:
        why = message.fact("why", str, _MOST_TEXT)
        if not self._post.bind:
            raise ConfigError(f"The consumer refuses this producer: {why}")
        # Whoever can connect can say this.
        log.warning("Somebody who connected refuses this producer: %s", why)

    def _greet(self, route: Route, consumer: bytes) -> None:
        session = self._session
        if session is not None and session.consumer == consumer:
            self._say(route, self._beat(session))
            return
        if self._serves_other(consumer):
            why = f"{self._name} serves another consumer at present"
            self._say(route, with_facts(header(Kind.REFUSE), {"why": why}))
            return
        facts = {
            "name": self._name,
            "exact": self._exact,
            "run": self._run,
            "pipeline": pipeline_of(self._flow)[:1000],
            "signature": self._signature,
        }
        self._say(route, with_facts(header(Kind.HELLO, number=self._heeded[1]), facts))

    def _serves_other(self, consumer: bytes) -> bool:
        """Whether the consumer of the session is another one, and is still there."""
        session = self._session
        if session is None or session.consumer == consumer or not self._post.bind:
            return False
        try:
            self._post.send(session.route, self._beat(session))
        except GoneError:
            return False
        return True

    # ------------------------------------------------------------------ sessions

    def _start(self, route: Route, message: Message) -> None:
        consumer = message.fact("consumer", bytes, 16)
        attempt = message.fact("attempt", int)
        session = self._session
        if session is not None and session.name == message.session:
            session.route = route
            self._acknowledged(session, message)
        elif message.fact("run", bytes, 16) != self._run or self._serves_other(consumer):
            self._greet(route, consumer)
        elif consumer != self._heeded[0] or attempt > self._heeded[1]:
            self._heeded = (consumer, attempt)
            self._close_session()
            self._name = message.fact("name", str)
            self._session = self._open(route, message)

    def _open(self, route: Route, message: Message) -> _Session:
        number = message.number
        room = max(1, self._hwm)
        session = _Session(
            message.session,
            message.fact("consumer", bytes, 16),
            route,
            None,
            Outbox(message.session, number, room),
            message.limit,
            message.fact("max_nbytes", int, 1 << 62),
        )
        log.info("%s: sending from datapoint %d on", self._name, number)
        try:
            session.iterator = self._iterator(message)
        except Exception as error:  # noqa: BLE001 - the consumer asked for it, and is told
            self._end(session, error)
        return session

    def _iterator(self, message: Message) -> DataIterator:
        base = message.fact("base", int, 1 << 62)
        state = message.fact("state", bytes, _MOST_STATE)
        if state:
            iterator = self._flow.iterate(state=unpacked(state))
        else:
            seed = message.fact("seed", int, 1 << 63)
            iterator = self._flow.iterate(
                epoch=message.fact("epoch", int, 1 << 62),
                seed=derive_seed(seed, self._name) if self._seed is None else self._seed,
            )
        wanted = message.number - base
        skipped = sum(1 for _ in islice(iterator, wanted))
        if skipped != wanted:
            raise StateError(
                f"{self._name} ended before the place where it is to continue.",
                got=f"{base + skipped} datapoints",
                expected=f"at least {message.number}",
                fix="the data differ from those that the state was taken from",
            )
        return iterator

    def _close_session(self) -> None:
        session, self._session = self._session, None
        if session is not None and session.iterator is not None:
            session.iterator.close()

    # ------------------------------------------------------------------ what leaves

    def _work(self) -> bool:
        session = self._session
        if session is None:
            return False
        outbox = session.outbox
        if session.over or outbox.full or outbox.end >= session.limit:
            self._blocked_at = self._blocked_at or self._clock()
            return self._flush(session)
        self._produce(session)
        self._progress.show("sending")
        return True

    def _flush(self, session: _Session) -> bool:
        sent = False
        self._flushed_at = self._clock()
        while (message := session.outbox.message(session.limit)) is not None:
            frames, count = message
            if not self._say(session.route, frames):
                break
            session.outbox.sent(count)
            sent = True
        return sent

    def _produce(self, session: _Session) -> None:
        asked = self._clock()
        waited, self._blocked_at = asked - (self._blocked_at or asked), None
        try:
            if session.iterator is None:
                raise InternalError("A session without an iterator was to produce.")
            datapoint = next(session.iterator)
            begin = self._clock()
            parcel, nbytes = self._packed(session, datapoint)
        except StopIteration:
            session.last = not self._stay
            self._end(session, None)
        except Exception as error:  # noqa: BLE001 - sent to the consumer, and raised by `run`
            session.last = not self._stay
            self._failure = error if session.last else None
            self._failed_at = self._clock()
            self._end(session, error)
        else:
            session.outbox.add(parcel)
            self._quick = self._quick + 1 if begin - asked < _HOLD_S else 0
            if not self._holds(session, parcel, begin):
                self._flush(session)
            self._progress.sent(nbytes, waited + self._clock() - begin)

    def _holds(self, session: _Session, parcel: Parcel, now: float) -> bool:
        """Whether a small datapoint may wait for the next ones."""
        return (
            parcel.small > 0
            and self._quick > _QUICK
            and session.outbox.unsent < _MOST_HELD
            and now < self._flushed_at + _HOLD_S
        )

    def _packed(self, session: _Session, datapoint: Any) -> tuple[Parcel, int]:
        frames = [memoryview(frame).cast("B") for frame in pack_frames(datapoint)]
        nbytes = sum(frame.nbytes for frame in frames)
        if nbytes <= _SMALL_BYTES:
            state = self._state(session)
            copies = [state, *map(bytes, frames)]
            return Parcel(Kind.DATA, copies, nbytes + len(state)), nbytes
        longest = max(frame.nbytes for frame in frames)
        if longest > session.max_nbytes:
            raise DataFlowError(
                f"A component of {longest:,} bytes is too large for the consumer.",
                expected=f"at most {session.max_nbytes:,} bytes",
                fix="RemoteDataZMQ(..., max_nbytes=...)",
            )
        return Parcel(Kind.DATA, [self._state(session), *map(self._post.keep, frames)]), nbytes

    def _state(self, session: _Session) -> bytes:
        """The flow's state behind the datapoint just produced, every now and then."""
        begin = self._clock()
        if begin < session.state_due or session.iterator is None:
            return b""
        msgpack: Any = importlib.import_module("msgpack")
        state = msgpack.packb(session.iterator.state())
        end = self._clock()
        session.state_due = end + max(_STATE_EVERY_S, _STATE_SHARE * (end - begin))
        return state if len(state) <= min(_MOST_STATE, session.max_nbytes) else b""

    def _end(self, session: _Session, error: Exception | None) -> None:
        number = session.outbox.end
        session.over = True
        if error is None:
            session.outbox.add(Parcel(Kind.END, []))
            return
        log.error("%s failed at datapoint %d: %s", self._name, number, error)
        facts = {
            "type": type(error).__name__,
            "what": str(error)[:_MOST_TEXT],
            "traceback": "".join(traceback.format_exception(error))[-_MOST_TEXT:],
        }
        msgpack: Any = importlib.import_module("msgpack")
        session.outbox.add(Parcel(Kind.ERROR, [msgpack.packb(facts)]))

    def _tick(self) -> None:
        now = self._clock()
        if now < self._tick_due:
            return
        session = self._session
        self._post.admit()
        if session is None:
            self._tick_due = now + _HELLO_S
            for route in self._post.routes():
                self._greet(route, NOBODY)
        else:
            self._tick_due = now + _BEAT_S
            self._say(session.route, self._beat(session))
        if self._failure is not None and now > self._failed_at + _LAST_WORDS_S:
            self._done = True

    def _beat(self, session: _Session) -> list[bytes]:
        return [header(Kind.BEAT, session.name, session.outbox.cursor)]

    def _say(self, route: Route, frames: Sequence[Any]) -> bool:
        """Send if that is possible at present; everything is said again if need be."""
        try:
            return self._post.send(route, frames)
        except GoneError:
            return False
