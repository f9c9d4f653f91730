"""The side that wants the data: one pass over all producers."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from towerpack._core.errors import FormatError
from towerpack._core.logs import get_logger
from towerpack.dataflow.remote._peer import Peer
from towerpack.dataflow.remote._post import GoneError, Post, Route
from towerpack.dataflow.remote._protocol import (
    Kind,
    Message,
    header,
    with_facts,
)
from towerpack.dataflow.remote._roster import RefusedError, Roster
from towerpack.dataflow.remote._seldom import Seldom
from towerpack.dataflow.remote._side import Side

log = get_logger(__name__)

_TICK_S: Final = 0.2
_BEAT_S: Final = 1.0
_LOOK_S: Final = 0.5
_SILENT_S: Final = 30.0
_MOST_NAME: Final = 200
_MOST_REMEMBERED: Final = 1024
_FROM_SESSIONS: Final = {Kind.DATA, Kind.GROUP, Kind.END, Kind.ERROR, Kind.BEAT}


@dataclass(frozen=True)
class Wish:
    """What a pass asks of every producer.

    Attributes:
        epoch: Which pass.
        seed: From which each producer derives its own.
        hwm: Datapoints that each may send ahead.
        max_nbytes: Of a frame.
    """

    epoch: int
    seed: int
    hwm: int
    max_nbytes: int


class Consumer(Side):
    """Talks with the producers, and puts what they send into the roster's inboxes.

    Args:
        post: Where they are.
        roster: Who they are.
        wish: What is asked of them.
        dropped: Counts messages that were dropped, by reason.
        clock: Seconds that pass.
    """

    def __init__(
        self,
        post: Post,
        roster: Roster,
        wish: Wish,
        dropped: Counter[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(post)
        self._roster = roster
        self._wish = wish
        self._clock = clock
        self._name = secrets.token_bytes(16)
        self._attempts = 0
        self._runs: dict[bytes, Peer] = {}
        self._sessions: dict[bytes, Peer] = {}
        self._bad_runs: set[bytes] = set()
        self._looked: dict[Route, float] = {}
        self._tick_due = 0.0
        self._beat_due = 0.0
        self._dropped = dropped
        self._seldom = Seldom(log, clock)

    def pump(self, wait_s: float) -> None:
        """Take one message, or wait for one."""
        now = self._clock()
        if now >= self._tick_due:
            self._tick(now)
        if not self._hear():
            self._post.wait(wait_s)
            self._hear()

    def credit(self, peer: Peer) -> None:
        """Datapoints were handed on: let the producer send more."""
        self._acknowledge(peer, Kind.ACK)

    def finish(self, peer: Peer, *, ended: bool) -> None:
        """The end of a session, or an error, was handed on."""
        self._acknowledge(peer, Kind.ACK)
        peer.ended = ended
        self._sessions.pop(peer.session, None)
        peer.session = b""

    def close(self) -> None:
        """Tell the producers that the pass is over, and close the sockets."""
        for peer in self._sessions.values():
            self._tell_peer(peer, [header(Kind.STOP, peer.session)])
        self._post.close()

    # ------------------------------------------------------------------ what arrives

    def _heed(self, route: Route, message: Message) -> None:
        if message.kind is Kind.HELLO:
            self._welcome(route, message)
        elif message.kind is Kind.REFUSE:
            why = plain(message.fact("why", str, _MOST_NAME))
            self._seldom.warn("refused", f"A producer refuses this consumer: {why}")
        elif message.kind not in _FROM_SESSIONS:
            raise FormatError(f"{message.kind.name} is not for a consumer.")
        elif message.session in self._sessions:
            self._continue(self._sessions[message.session], route, message)
        else:
            # What was on its way when its pass ended, mostly.
            self._dropped["of sessions that are over"] += 1
            log.debug("A message of a session that is over was dropped.")
            self._look(route)

    def _continue(self, peer: Peer, route: Route, message: Message) -> None:
        now = self._clock()
        peer.route, peer.heard_s, peer.answered = route, now, True
        if peer.lost:
            peer.lost = False
            log.info("%s: the connection is back", peer.name)
        if message.kind is Kind.BEAT:
            peer.answer = message.limit or peer.answer
            gap = message.number > peer.received
            self._acknowledge(peer, Kind.RESEND if gap and peer.wants_again(now) else Kind.ACK)
            return
        try:
            accepted = peer.accept(message, self._wish.hwm)
        except FormatError as error:
            self._shut_out(peer, route, error)
            return
        if accepted:
            self._roster.arrived(peer, accepted)
        elif message.number > peer.received and peer.wants_again(now):
            self._acknowledge(peer, Kind.RESEND)

    def _shut_out(self, peer: Peer, route: Route, error: FormatError) -> None:
        """A producer whose data are damaged: it would send them again and again."""
        log.error("%s sent datapoint %d damaged: %s", peer.name, peer.received, error)
        self._refuse(route, f"datapoint {peer.received} is damaged: {error.what}")
        if len(self._bad_runs) < _MOST_REMEMBERED:
            self._bad_runs.add(peer.run)
        self._sessions.pop(peer.session, None)
        self._runs.pop(peer.run, None)
        peer.session = peer.run = b""
        peer.route = None

    # ------------------------------------------------------------------ who comes

    def _welcome(self, route: Route, message: Message) -> None:
        run = message.fact("run", bytes, 16)
        now = self._clock()
        peer = self._runs.get(run)
        if peer is not None:
            peer.route = route
            if not peer.ended and (
                not peer.session or peer.answered or now > peer.begun_s + _BEAT_S
            ):
                self._start(peer, now)
        elif run not in self._bad_runs:
            self._place(route, message, run, now)

    def _place(self, route: Route, message: Message, run: bytes, now: float) -> None:
        name = message.fact("name", str, _MOST_NAME)
        signature = message.fact("signature", bytes, 64)
        exact = message.fact("exact", bool)
        pipeline = plain(message.fact("pipeline", str))
        room = message.fact("room", int, 1 << 31)
        try:
            peer = self._roster.place_of(
                name, exact, signature, lambda peer: self._is_alive(peer, route, run)
            )
        except RefusedError as error:
            self._refuse(route, str(error))
            self._drop("from producers that are not wanted", str(error))
            return
        if peer is None or peer.ended:
            return  # it says HELLO again, and waits for its place, or for the next pass
        log.info("%s has come: %s", plain(peer.name), pipeline)
        self._runs.pop(peer.run, None)
        self._runs[run] = peer
        peer.run, peer.route, peer.signature, peer.room = run, route, signature, room
        self._start(peer, now)

    def _is_alive(self, peer: Peer, newcomer: Route, run: bytes) -> bool | None:
        """Whether the producer that has a place is still there; `None`: it was asked."""
        route = peer.route
        if not peer.run or route is None or peer.ended:
            return False
        if not self._post.bind and route.link == newcomer.link:
            return False  # one address, one producer: whoever answers there is the one
        # What a dead one has left behind may still be coming in, and until then its route takes
        # messages too. So it has to say something that it cannot have said before.
        peer.riddle = int.from_bytes(run[:8], "little") | 1
        try:
            self._post.send(route, [header(Kind.LOOK, self._name, peer.riddle)])
        except GoneError:
            return False
        return True if peer.answer == peer.riddle else None

    def _start(self, peer: Peer, now: float) -> None:
        self._sessions.pop(peer.session, None)
        self._attempts += 1
        peer.begin(secrets.token_bytes(16), self._attempts, now)
        self._sessions[peer.session] = peer
        facts = {
            "name": peer.name,
            "run": peer.run,
            "consumer": self._name,
            "attempt": peer.attempt,
            "epoch": self._wish.epoch,
            "seed": self._wish.seed,
            "base": peer.base,
            "state": peer.state,
            "max_nbytes": self._wish.max_nbytes,
        }
        limit = peer.handed + self._wish.hwm
        self._next_credit(peer)
        self._tell_peer(
            peer, with_facts(header(Kind.START, peer.session, peer.handed, limit), facts)
        )

    # ------------------------------------------------------------------ what is said

    def _tick(self, now: float) -> None:
        self._tick_due = now + _TICK_S
        self._post.admit()
        if self._post.refused > self._dropped["connections without an allowed key"]:
            self._dropped["connections without an allowed key"] = self._post.refused
        spoken = {peer.route for peer in self._sessions.values()}
        for route in self._post.routes():
            if route not in spoken:
                self._post.send(route, [header(Kind.LOOK, self._name)])
        if now >= self._beat_due:
            # After a pause of ours, what they said meanwhile is still to be read.
            paused = now > self._beat_due + _BEAT_S
            self._beat_due = now + _BEAT_S
            for peer in self._sessions.values():
                self._acknowledge(peer, Kind.ACK)
                peer.heard_s = now if paused else peer.heard_s
                if now > peer.heard_s + _SILENT_S and not peer.lost:
                    self._seldom.warn(
                        f"silence of {peer.name}",
                        f"{plain(peer.name)} has been silent for {now - peer.heard_s:.0f} s: its "
                        "flow takes that long for a datapoint, or its machine is gone",
                    )

    def _acknowledge(self, peer: Peer, kind: Kind) -> None:
        self._next_credit(peer)
        self._tell_peer(peer, self._acknowledgement(peer, kind))

    def _next_credit(self, peer: Peer) -> None:
        """Not for each datapoint."""
        peer.credit_due = peer.handed + max(1, min(self._wish.hwm, peer.room) // 2)

    def _acknowledgement(self, peer: Peer, kind: Kind) -> list[bytes]:
        return [header(kind, peer.session, peer.safe, peer.handed + self._wish.hwm)]

    def _look(self, route: Route) -> None:
        """Ask somebody who sends unknown things who he is, but not for each of them."""
        now = self._clock()
        if now < self._looked.get(route, 0.0) + _LOOK_S:
            return
        if len(self._looked) >= _MOST_REMEMBERED:
            self._looked.clear()
        self._looked[route] = now
        self._say(route, [header(Kind.LOOK, self._name)])

    def _tell_peer(self, peer: Peer, frames: list[bytes]) -> None:
        """Say what is repeated if it does not arrive, and note who is gone."""
        try:
            if peer.route is not None:
                self._post.send(peer.route, frames)
        except GoneError:
            if not peer.lost:
                log.warning("%s: the connection is lost; waiting for it to come back", peer.name)
            peer.lost = True

    def _drop(self, what: str, detail: str) -> None:
        self._dropped[what] += 1
        self._seldom.warn(
            what, f"Messages {what} were dropped: {self._dropped[what]}. {plain(detail)}"
        )


def plain(text: str) -> str:
    """Text from elsewhere, without what would steer a terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)
