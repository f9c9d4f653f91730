"""Which producers there are, what they are called, and whose datapoint comes next."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

from towerpack.dataflow._stream import State
from towerpack.dataflow.remote._peer import Peer

# A peer that keeps inventing names must not fill the memory.
_MOST_PEERS = 1024


class RefusedError(Exception):
    """A producer that is not to send, and why. Internal."""


class Roster:
    """The producers of one pass.

    Args:
        wanted: How many there are, or their names; `None` for as many as come.
        ordered: Take turns by name, rather than by arrival.
        state: As `state()` gave it.
    """

    def __init__(self, wanted: int | Sequence[str] | None, ordered: bool, state: State) -> None:
        self._names = None if wanted is None or isinstance(wanted, int) else frozenset(wanted)
        self._count = len(self._names) if self._names is not None else cast("int | None", wanted)
        self._ordered = ordered
        self._arrivals: deque[Peer] = deque()
        self._turn = ""
        self.peers: dict[str, Peer] = {}
        if state is not None:
            self._turn = str(state["turn"])
            saved = cast("dict[str, Any]", state["producers"])
            self.peers = {name: Peer.restored(name, at) for name, at in saved.items()}

    def state(self) -> State:
        """Where every producer's stream is to be continued."""
        producers = {name: peer.saved() for name, peer in self.peers.items()}
        return {"turn": self._turn, "producers": producers}

    def forget(self) -> None:
        """Let go of what was not handed on; `state()` does not count it."""
        for peer in self.peers.values():
            peer.inbox.clear()

    # ------------------------------------------------------------------ who is who

    def place_of(
        self, name: str, exact: bool, signature: bytes, alive: Callable[[Peer], bool | None]
    ) -> Peer | None:
        """The place of a newcomer; `None` if it is not known yet whether that is free.

        Args:
            name: What the newcomer calls itself.
            exact: No other name will do. Otherwise it gets a free one that begins so: first that of
                one with the same flow that is gone, whose work it can go on with.
            signature: Of its flow.
            alive: Whether the producer that has a place is still there; `None`: not known yet.

        Raises:
            RefusedError: It is none of those that are wanted, there are enough, or the name is
                another's.
        """
        if exact or self._names is not None:
            peer = self._wanted(name)
            there = alive(peer)
            if there:
                raise RefusedError(
                    f"there is another producer named {name!r}; give each a name= of its own"
                )
            return peer if there is False else None
        number = 1
        while True:
            peer = self._wanted(name if number == 1 else f"{name}-{number}")
            if peer.signature in (b"", signature) and not peer.ended:
                there = alive(peer)
                if not there:
                    return peer if there is False else None
            number += 1

    def _wanted(self, name: str) -> Peer:
        if name in self.peers:
            return self.peers[name]
        if self._names is not None and name not in self._names:
            raise RefusedError(
                f"{name!r} is none of the producers it takes: {', '.join(sorted(self._names))}"
            )
        if len(self.peers) >= (self._count or _MOST_PEERS):
            raise RefusedError(f"it takes {self._count or _MOST_PEERS} producers, and has them")
        return self.peers.setdefault(name, Peer(name))

    # ------------------------------------------------------------------ whose turn

    def arrived(self, peer: Peer, count: int) -> None:
        """So much is new in a peer's inbox."""
        if not self._ordered:
            self._arrivals.extend([peer] * count)

    def ready(self) -> Peer | None:
        """The producer to take from, if what it is to give has come."""
        if self._ordered:
            peer = self._next_in_order()
            return peer if peer is not None and peer.inbox else None
        while self._arrivals:
            peer = self._arrivals.popleft()
            if peer.inbox:  # not taken back by a new session
                return peer
        return None

    def has_news(self) -> bool:
        """Whether `ready` may have something."""
        if self._ordered:
            peer = self._next_in_order()
            return peer is not None and bool(peer.inbox)
        return bool(self._arrivals)

    def handed(self, peer: Peer) -> None:
        """A datapoint of `peer` was handed on in its turn."""
        self._turn = peer.name

    def _next_in_order(self) -> Peer | None:
        if not self.complete():
            return None
        running = sorted(name for name, peer in self.peers.items() if not peer.ended)
        later = [name for name in running if name > self._turn]
        return self.peers[(later or running)[0]] if running else None

    def complete(self) -> bool:
        """Whether all who are to come have come, in this pass or before it was resumed."""
        return len(self.peers) >= (1 if self._count is None else self._count)

    def over(self) -> bool:
        """Whether there is no more to come."""
        return self.complete() and all(peer.ended for peer in self.peers.values())

    def missing(self) -> list[str]:
        """What is waited for, in words."""
        rows = [f"{peer.name}: {_status(peer)}" for peer in self.peers.values() if not peer.ended]
        if not self.complete():
            names = sorted((self._names or frozenset()) - set(self.peers))
            count = (self._count or 1) - len(self.peers)
            rows.append(f"{', '.join(names) or f'{count} more'}: not come yet")
        return rows


def _status(peer: Peer) -> str:
    if not peer.run:
        return f"not come back yet, to continue at datapoint {peer.handed}"
    if peer.lost:
        return f"its connection is lost, after {peer.received} datapoints"
    if not peer.session:
        return "failed, and has not begun again"
    if not peer.answered:
        return "was asked to begin, and has not answered"
    return f"connected, {peer.received} datapoints received; its flow gives no more at present"
