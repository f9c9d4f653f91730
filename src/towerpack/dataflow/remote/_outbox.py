"""What a producer has sent, or could send, and nobody has confirmed."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from towerpack.dataflow.formats._wire import pack_all
from towerpack.dataflow.formats._wire_tree import Writer
from towerpack.dataflow.remote._protocol import Kind, header

_MOST_IN_GROUP: Final = 64
GROUP_BYTES: Final = 1 << 16


class Parcel(NamedTuple):
    """A datapoint, an end or an error.

    Attributes:
        kind: Which of these.
        frames: What follows the header; of a small datapoint only its state.
        nbytes: How many bytes of a datapoint these are.
        small: The rest of a small datapoint. Several travel together.
    """

    kind: Kind
    frames: Sequence[Any]
    nbytes: int = 0
    small: Writer | None = None


class Outbox:
    """Numbered parcels, kept until they are acknowledged.

    Args:
        session: Whom they are for.
        first: The number of the first parcel.
        room: How many may be kept.
        most: How many bytes small datapoints may have together.

    Attributes:
        end: The number that the next parcel gets.
        cursor: The number of the next parcel to be sent.
    """

    def __init__(self, session: bytes, first: int, room: int, most: int = GROUP_BYTES) -> None:
        self._session = session
        self._kept: deque[Parcel] = deque()
        self._room = room
        self._most = most
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
        parcel = self._kept[self.cursor - self.begin]
        if parcel.small is None:
            return [header(parcel.kind, self._session, self.cursor), *parcel.frames], 1
        together = self._together(min(count, _MOST_IN_GROUP))
        head = header(Kind.GROUP, self._session, self.cursor, len(together))
        return [head, *parcel.frames, pack_all(together)], len(together)

    def _together(self, count: int) -> list[Writer]:
        """The small datapoints from the cursor on that may travel together, at most so many."""
        together: list[Writer] = []
        nbytes = 0
        first = self.cursor - self.begin
        for index in range(first, first + count):
            parcel = self._kept[index]
            nbytes += parcel.nbytes
            if parcel.small is None:
                break
            # Only the first one's state travels.
            if together and (nbytes > self._most or parcel.frames[0]):
                break
            together.append(parcel.small)
        return together

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
