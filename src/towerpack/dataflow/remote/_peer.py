"""What a consumer knows of one producer."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from towerpack._core.errors import FormatError
from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow._stream import State
from towerpack.dataflow.formats._wire import unpack_frames
from towerpack.dataflow.formats._wire_rows import unpack_bundle
from towerpack.dataflow.remote._post import Route
from towerpack.dataflow.remote._protocol import GROUP_NBYTES, Kind, Message

_SMALL_FRAME = 1 << 16
_RESEND_S = 0.5


@dataclass
class ProducerCounts:
    """What came from one producer in one pass.

    Attributes:
        datapoints: Handed on.
        nbytes: Received in them.
        repeated: Datapoints that came again, and were dropped.
        missing: Times that datapoints were lost on their way, and asked for again.
        starts: Times that the producer began to send: more than once if it was restarted.
    """

    datapoints: int = 0
    nbytes: int = 0
    repeated: int = 0
    missing: int = 0
    starts: int = 0


class Event(NamedTuple):
    """What comes in order, but is no datapoint: an end (with facts, if it is an error)."""

    kind: Kind
    facts: Mapping[str, Any]


class Behind(NamedTuple):
    """A datapoint, and the state of the producer's flow behind it."""

    datapoint: Datapoint
    state: bytes


@dataclass
class Peer:
    """One producer: what is wanted of it, and what has come.

    Attributes:
        name: Unique among the consumer's producers.
        handed: Datapoints of its stream that were handed on.
        base: A number of datapoints, at most `handed`.
        state: The state of the producer's flow behind `base` datapoints; empty: none is known.
        ended: The end of its stream was handed on.
        run: Which process it is; empty if it has not come yet.
        received: Datapoints of its stream that have come.
        inbox: Those between `handed` and `received`, and then perhaps an `Event`.
        riddle: What it was asked, to see whether it is there.
        answer: The latest answer to one.
        room: How many it keeps until they are acknowledged.
        credit_due: When so many were handed on, it is to hear of it.
    """

    name: str
    handed: int = 0
    base: int = 0
    state: bytes = b""
    ended: bool = False

    signature: bytes = b""
    run: bytes = b""
    session: bytes = b""
    route: Route | None = None
    lost: bool = False
    answered: bool = False
    attempt: int = 0
    begun_s: float = 0.0
    heard_s: float = 0.0
    riddle: int = 0
    answer: int = 0
    received: int = 0
    inbox: deque[Any] = field(default_factory=deque[Any])
    room: int = 1
    credit_due: int = 0
    resend_s: float = 0.0
    counts: ProducerCounts = field(default_factory=ProducerCounts)

    @staticmethod
    def restored(name: str, state: State) -> Peer:
        """A producer that is to continue."""
        handed, base, inner, ended, signature = (
            state[key] for key in ("handed", "base", "state", "ended", "signature")
        )
        numbers = type(handed) is int and type(base) is int and 0 <= base <= handed
        if not (numbers and type(inner) is bytes and type(signature) is bytes):
            raise TypeError(f"the position of producer {name!r}")
        return Peer(name, handed, base, inner, bool(ended), signature, received=handed)

    def saved(self) -> State:
        """Where its stream is to be continued."""
        return {
            "handed": self.handed,
            "base": self.base,
            "state": self.state,
            "ended": self.ended,
            "signature": self.signature,
        }

    def begin(self, session: bytes, attempt: int, now: float) -> None:
        """Start over behind what was handed on."""
        self.session = session
        self.attempt = attempt
        self.begun_s = self.heard_s = now
        self.answered = self.lost = False
        self.riddle = self.answer = 0
        self.received = self.handed
        self.inbox.clear()
        self.counts.starts += 1

    @property
    def safe(self) -> int:
        """Before which number the producer need keep nothing.

        The end counts when it is handed on: until then a consumer that is killed and comes back
        still finds the producer there.
        """
        ends = bool(self.inbox) and type(self.inbox[-1]) is Event
        return self.received - ends

    def wants_again(self, now: float) -> bool:
        """Note a gap; whether it is time to ask for what is missing."""
        if now < self.resend_s:
            return False
        self.resend_s = now + _RESEND_S
        self.counts.missing += 1
        return True

    def accept(self, message: Message, hwm: int) -> int:
        """Take what is next in order; returns how much that is.

        Raises:
            FormatError: It is next, but damaged.
        """
        count = message.limit if message.kind is Kind.GROUP else 1
        known = self.received - message.number
        if not 0 <= known < count or message.number + count > self.handed + hwm:
            self.counts.repeated += known > 0
            return 0
        arrivals = _arrivals(message)
        del arrivals[:known]
        self.inbox.extend(arrivals)
        self.received += len(arrivals)
        self.counts.nbytes += sum(len(frame) for frame in message.frames)
        return len(arrivals)

    def hand(self) -> Any:
        """The next datapoint, which counts as handed on; or what came instead of it, an `Event`."""
        arrival = self.inbox.popleft()
        # Datapoints are made of plain types; these are ours.
        if type(arrival) is Event:
            return arrival
        self.handed += 1
        self.counts.datapoints += 1
        if type(arrival) is Behind:
            arrival, self.state = arrival
            self.base = self.handed
        return arrival


def _arrivals(message: Message) -> list[Any]:
    match message.kind:
        case Kind.DATA:
            state, *frames = message.frames
            datapoint = unpack_frames([_owned(frame) for frame in frames])
            return [Behind(datapoint, bytes(state)) if state else datapoint]
        case Kind.GROUP:
            packed, *states = message.frames
            if len(packed) > GROUP_NBYTES:
                raise FormatError(f"A group of {len(packed):,} bytes is too large.")
            datapoints = unpack_bundle(packed, message.limit)
            if states:
                datapoints[-1:] = [Behind(datapoints[-1], bytes(states[0]))]
            return datapoints
        case Kind.ERROR:
            return [Event(Kind.ERROR, message.facts())]
        case Kind.END:
            return [Event(Kind.END, {})]
        case _:
            raise FormatError(f"{message.kind.name} has no place in a stream.")


def _owned(frame: Any) -> Any:
    # Small messages are slices of a buffer of libzmq's: not aligned, and they keep all of it.
    return bytearray(frame) if len(frame) < _SMALL_FRAME else frame
