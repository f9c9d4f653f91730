"""What a producer has sent, or could send, and nobody has confirmed."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from towerpack.dataflow.remote._protocol import Kind, header


class Parcel(NamedTuple):
    """One message: a datapoint, several small ones, an end or an error.

    Attributes:
        kind: Which of these.
        frames: What follows the header.
        numbers: How many numbers it takes.
    """

    kind: Kind
    frames: Sequence[Any]
    numbers: int = 1


class Outbox:
    """Numbered parcels, kept until they are acknowledged.

    Args:
        session: Whom they are for.
        first: The number of the first parcel.
        room: How many numbers may be kept.

    Attributes:
        begin: The number of the oldest parcel kept.
        end: The number that the next parcel gets.
        cursor: The number of the next parcel to be sent.
    """

    def __init__(self, session: bytes, first: int, room: int) -> None:
        self._session = session
        self._kept: deque[Parcel] = deque()
        self._next = 0
        self._room = room
        self._reached = first
        self.begin = self.end = self.cursor = first

    @property
    def room(self) -> int:
        """How many numbers can be added."""
        return self._room - len(self)

    def __len__(self) -> int:
        return self.end - self.begin

    def add(self, parcel: Parcel) -> None:
        """Keep a parcel; its first number is `end`."""
        self._kept.append(parcel)
        self.end += parcel.numbers

    def message(self) -> list[Any] | None:
        """The next message, if there is one."""
        if self._next == len(self._kept):
            return None
        parcel = self._kept[self._next]
        count = parcel.numbers if parcel.kind is Kind.GROUP else 0
        return [header(parcel.kind, self._session, self.cursor, count), *parcel.frames]

    def sent(self) -> None:
        """That message is on its way."""
        self.cursor += self._kept[self._next].numbers
        self._next += 1
        self._reached = max(self._reached, self.cursor)

    def acknowledge(self, number: int) -> None:
        """Forget all before `number`; what was never sent cannot have arrived."""
        number = min(number, self._reached)
        while self._kept and self.begin + self._kept[0].numbers <= number:
            self.begin += self._kept.popleft().numbers
            self._next -= 1
        if self._next < 0:
            self._next, self.cursor = 0, self.begin

    def rewind(self, number: int) -> None:
        """Send again from `number` on, or a little before it."""
        if self.begin <= number:
            while self.cursor > number:
                self._next -= 1
                self.cursor -= self._kept[self._next].numbers
