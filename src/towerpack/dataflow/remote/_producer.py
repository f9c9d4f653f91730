"""The side that has the flow: what it says to consumers, and what it hears from them."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from typing import Final

from towerpack._core.errors import ConfigError, FormatError
from towerpack._core.logs import get_logger
from towerpack.dataflow._flow import DataFlow, pipeline_of, signature_of
from towerpack.dataflow.formats._wire_rows import MOST_IN_BUNDLE
from towerpack.dataflow.remote._pace import Pace
from towerpack.dataflow.remote._post import GoneError, Post, Route
from towerpack.dataflow.remote._progress import Progress
from towerpack.dataflow.remote._protocol import (
    NOBODY,
    Kind,
    Message,
    header,
    with_facts,
)
from towerpack.dataflow.remote._session import Order, Session
from towerpack.dataflow.remote._side import Side

log = get_logger(__name__)

_BEAT_S: Final = 1.0
_HELLO_S: Final = 0.1
_SLICE_S: Final = 0.1
# A flood must not keep a producer from producing.
_MOST_AT_ONCE: Final = 64
_MOST_TEXT: Final = 1 << 16
# How long a failed producer waits for a consumer to take note.
_LAST_WORDS_S: Final = 10.0


class Producer(Side):
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
        super().__init__(post)
        self._flow = flow
        self._name = name
        self._exact = exact
        self._hwm = hwm
        self._seed = seed
        self._stay = stay
        self._progress = progress
        self._clock = clock
        self._run = secrets.token_bytes(16)
        self._signature = hashlib.blake2b(signature_of(flow).encode(), digest_size=16).digest()
        self._session: Session | None = None
        self._route = Route(0, b"")
        self._limit = 0
        self._heeded: tuple[bytes, int] = (NOBODY, 0)
        self._error: Exception | None = None
        self._give_up = float("inf")
        self._done = False
        self._tick_due = 0.0
        self._blocked_at: float | None = None
        self._pace = Pace()

    def run(self) -> None:
        """Serve until everything is sent and acknowledged, or the flow fails."""
        try:
            while not self._done:
                if not self.step():
                    self._progress.show("waiting for the consumer")
                    self._post.wait(_SLICE_S)
        finally:
            self._close_session()
        if self._error is not None:
            raise self._error

    def step(self) -> bool:
        """Do what there is to do without waiting; False if that was nothing."""
        for _ in range(_MOST_AT_ONCE):
            if not self._hear():
                break
        self._tick()
        return self._done or self._work()

    # ------------------------------------------------------------------ what arrives

    def _heed(self, route: Route, message: Message) -> None:
        session = self._session
        if message.kind is Kind.START:
            self._start(route, message)
        elif message.kind is Kind.REFUSE:
            self._be_refused(message)
        elif message.kind is Kind.LOOK:
            self._greet(route, message.session, message.number)
        elif message.kind not in (Kind.ACK, Kind.RESEND, Kind.STOP):
            raise FormatError(f"{message.kind.name} is not for a producer.")
        elif session is None or message.session != session.order.session:
            # What a stopped session of the same consumer has left behind needs no answer.
            if message.kind is not Kind.STOP and (session is None or route != self._route):
                self._greet(route, NOBODY)
        elif message.kind is Kind.STOP:
            self._close_session()
        else:
            self._acknowledged(session, route, message)

    def _drop(self, what: str, detail: str) -> None:
        log.debug("A message %s was dropped: %s", what, detail)

    def _acknowledged(self, session: Session, route: Route, message: Message) -> None:
        self._route = route
        self._limit = max(self._limit, message.limit)
        session.outbox.acknowledge(message.number)
        if message.kind is Kind.RESEND:
            session.outbox.rewind(message.number)
        if session.over and not session.outbox:
            self._done = session.opened and not self._stay
            self._close_session()

    def _be_refused(self, message: Message) -> None:
        why = message.fact("why", str, _MOST_TEXT)
        if not self._post.bind:
            raise ConfigError(f"The consumer refuses this producer: {why}")
        # Whoever can connect can say this.
        log.warning("Somebody who connected refuses this producer: %s", why)

    def _greet(self, route: Route, consumer: bytes, riddle: int = 0) -> None:
        session = self._session
        if session is not None and session.order.consumer == consumer:
            self._say(route, self._beat(session, riddle))
            return
        if self._serves_other(consumer):
            self._refuse(route, f"{self._name} serves another consumer at present")
            return
        facts = {
            "name": self._name,
            "exact": self._exact,
            "run": self._run,
            "room": self._hwm,
            "pipeline": pipeline_of(self._flow)[:1000],
            "signature": self._signature,
        }
        self._say(route, with_facts(header(Kind.HELLO), facts))

    def _serves_other(self, consumer: bytes) -> bool:
        """Whether the consumer of the session is another one, and is still there."""
        session = self._session
        if session is None or session.order.consumer == consumer or not self._post.bind:
            return False
        try:
            self._post.send(self._route, self._beat(session))
        except GoneError:
            return False
        return True

    def _start(self, route: Route, message: Message) -> None:
        order = Order.read(message)
        attempt = message.fact("attempt", int)
        session = self._session
        if session is not None and session.order.session == order.session:
            self._acknowledged(session, route, message)
        elif message.fact("run", bytes, 16) != self._run or self._serves_other(order.consumer):
            self._greet(route, order.consumer)
        elif order.consumer != self._heeded[0] or attempt > self._heeded[1]:
            self._heeded = (order.consumer, attempt)
            self._close_session()
            self._name = order.name
            self._route, self._limit = route, message.limit
            log.info("%s: sending from datapoint %d on", order.name, order.number)
            self._session = Session(
                self._flow,
                order,
                room=self._hwm,
                seed=self._seed,
                keep=self._post.keep,
                clock=self._clock,
            )

    def _close_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()
            self._tick_due = 0.0  # there may be a next pass already

    # ------------------------------------------------------------------ what leaves

    def _work(self) -> bool:
        session = self._session
        if session is None:
            return False
        most = min(session.outbox.room, self._limit - session.outbox.end)
        if session.over or most < 1:
            self._blocked_at = self._blocked_at or self._clock()
            return self._flush(session)
        self._produce(session, min(most, MOST_IN_BUNDLE))
        self._flush(session)
        self._progress.show("sending")
        return True

    def _produce(self, session: Session, most: int) -> None:
        asked = self._clock()
        waited, self._blocked_at = asked - (self._blocked_at or asked), None
        self._pace.begin(asked)
        made = session.produce(most, self._pace.may_wait)
        if session.error is not None and not self._stay:
            self._error = session.error
            self._give_up = made.ready_s + _LAST_WORDS_S
        if made.count:
            self._progress.sent(made.count, made.nbytes, waited + self._clock() - made.ready_s)

    def _flush(self, session: Session) -> bool:
        sent = False
        while (message := session.outbox.message()) is not None:
            if not self._say(self._route, message):
                break
            session.outbox.sent()
            sent = True
        return sent

    def _tick(self) -> None:
        now = self._clock()
        if now < self._tick_due and not self._post.connected:
            return
        self._post.connected = False  # whoever is there now may be somebody else
        session = self._session
        self._post.admit()
        if session is None:
            self._tick_due = now + _HELLO_S
            for route in self._post.routes():
                self._greet(route, NOBODY)
        else:
            self._tick_due = now + _BEAT_S
            self._say(self._route, self._beat(session))
        self._done = self._done or now > self._give_up

    def _beat(self, session: Session, answer: int = 0) -> list[bytes]:
        return [header(Kind.BEAT, session.order.session, session.outbox.cursor, answer)]
