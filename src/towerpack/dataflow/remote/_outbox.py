"""What a producer has sent, or could send, and nobody has confirmed."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from towerpack.dataflow.remote._protocol import Kind, group, header

_MOST_IN_GROUP: Final = 64
_GROUP_BYTES: Final = 1 << 16


class Parcel(NamedTuple):
    """A datapoint, an end or an error.

    Attributes:
        kind: Which of these.
        frames: What follows the header.
        nbytes: How many bytes of a datapoint these are.
        small: Whether several may travel together.
    """

    kind: Kind
    frames: Sequence[Any]
    nbytes: int = 0
    small: bool = False


class Outbox:
    """Numbered parcels, kept until they are acknowledged.

    Args:
        session: Whom they are for.
        first: The number of the first parcel.
        room: How many may be kept.

    Attributes:
        end: The number that the next parcel gets.
        cursor: The number of the next parcel to be sent.
    """

    def __init__(self, session: bytes, first: int, room: int) -> None:
        self._session = session
        self._kept: deque[Parcel] = deque()
        self._room = room
        self._reached = first
        self.end = first
        self.cursor = first

    @property
    def begin(self) -> int:
        """The number of the oldest parcel kept."""
        return self.end - len(self._kept)

    @property
    def full(self) -> bool:
        """Whether nothing can be added."""
        return len(self._kept) >= self._room

    @property
    def unsent(self) -> int:
        """How many have not been sent."""
        return self.end - self.cursor

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, parcel: Parcel) -> None:
        """Keep parcel `end`."""
        self._kept.append(parcel)
        self.end += 1

    def message(self, limit: int) -> tuple[Sequence[Any], int] | None:
        """The next message, of parcels with numbers below `limit`, and how many they are."""
        count = min(limit, self.end) - self.cursor
        if count < 1:
            return None
        first = self.cursor - self.begin
        together: list[Sequence[Any]] = []
        nbytes = 0
        for parcel in islice(self._kept, first, first + min(count, _MOST_IN_GROUP)):
            nbytes += parcel.nbytes
            if not parcel.small or nbytes > _GROUP_BYTES:
                break
            together.append(parcel.frames)
        if len(together) > 1:
            return group(self._session, self.cursor, together), len(together)
        parcel = self._kept[first]
        return [header(parcel.kind, self._session, self.cursor), *parcel.frames], 1

    def sent(self, count: int) -> None:
        """So many parcels from the cursor on are on their way."""
        self.cursor += count
        self._reached = max(self._reached, self.cursor)

    def acknowledge(self, number: int) -> None:
        """Forget all before `number`; what was never sent cannot have arrived."""
        for _ in range(self.begin, min(number, self._reached)):
            self._kept.popleft()
        self.cursor = max(self.cursor, self.begin)

    def rewind(self, number: int) -> None:
        """Send again from `number` on."""
        if self.begin <= number < self.cursor:
            self.cursor = number
