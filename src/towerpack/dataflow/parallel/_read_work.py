"""Units of work out of what a thread of the consumer reads."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow._flow import DataFlow
from towerpack.dataflow._stream import State, Stream, Tally
from towerpack.dataflow.parallel._crew import Crew
from towerpack.dataflow.parallel._reader import Buffer, Entry, read_ahead
from towerpack.dataflow.parallel._run import Adaptive, Piece, WorkSource
from towerpack.dataflow.parallel._set_apart import may_write_over, set_apart
from towerpack.dataflow.parallel._unit import Unit

_BUFFER = 256


class Read(NamedTuple):
    """What was read for one datapoint of a result.

    Attributes:
        state: Of the source after it.
        skipped: How many bad datapoints the source left out before the last of it.
        size: How many datapoints of the source.
    """

    state: State
    skipped: int
    size: int


class ReadWork(Adaptive, WorkSource):
    """Datapoints that a thread of the consumer reads, in groups that become one each.

    Args:
        epoch: The pass.
        count: How many were read before.
        buffer: Where the thread puts them.
        remainder: Whether the last group may be smaller.
    """

    def __init__(self, epoch: int, count: int, buffer: Buffer, remainder: bool) -> None:
        self._group = buffer.group
        Adaptive.__init__(self, 1, max(1, _BUFFER // 2 // self._group))
        self._epoch = epoch
        self._next = count
        self._buffer = buffer
        self._remainder = remainder
        self._skipped_in_rest = 0
        self.left_out = 0
        """How many datapoints the last group has that is not whole."""
        self.reads: deque[Read] = deque()
        """For each group that was issued and not handed on."""

    def next_piece(self) -> Piece | None:
        entries = self._whole(self._buffer.take(self.size * self._group))
        if not entries:
            return None
        start = self._next
        self._next = stop = start + len(entries)
        firsts = range(0, len(entries), self._group)
        self.reads.extend(_read_for(entries[first : first + self._group]) for first in firsts)
        inputs = [entry.datapoint for entry in entries]
        return Piece((self._epoch, start, stop), len(firsts), inputs)

    def ended(self) -> bool:
        return self._buffer.ended

    def raise_error(self) -> None:
        self._buffer.raise_error()

    @property
    def skipped_last(self) -> int:
        """How many bad datapoints the source left out after the last group."""
        return self._skipped_in_rest + self._buffer.skipped_last

    @property
    def state_last(self) -> State:
        """Of the source at its end."""
        return self._buffer.state_last

    def rest(self, unit: Unit) -> Piece:
        epoch, start, stop = unit.work
        done = unit.finished * self._group
        return Piece((epoch, start + done, stop), unit.count - unit.finished, unit.inputs[done:])

    def close(self) -> None:
        self._buffer.close()

    def _whole(self, entries: list[Entry]) -> list[Entry]:
        """Without the last group, if that is to be left out."""
        rest = len(entries) % self._group
        if self._remainder or not rest:
            return entries
        self.left_out = rest
        self._skipped_in_rest = sum(entry.skipped for entry in entries[-rest:])
        return entries[:-rest]


def _read_for(group: Sequence[Entry]) -> Read:
    return Read(group[-1].state, sum(entry.skipped for entry in group), len(group))


def start_reading(
    flow: DataFlow,
    source: Stream,
    tally: Tally,
    crew: Crew,
    *,
    epoch: int,
    count: int,
    group: int = 1,
    remainder: bool = True,
) -> ReadWork:
    """Have a thread read a source ahead.

    Args:
        flow: What is read.
        source: A pass over it; the thread closes it.
        tally: Where the source counts what it leaves out.
        crew: Who waits for what is read.
        epoch: The pass.
        count: How many datapoints were read before.
        group: How many datapoints of the source make one of a result.
        remainder: Whether the last one may be made of fewer.
    """
    buffer = Buffer(max(_BUFFER, group), crew.wake, group)
    work = ReadWork(epoch, count, buffer, remainder)

    def apart(datapoint: Datapoint) -> Datapoint:
        return set_apart(datapoint, crew.set_apart)

    read_ahead(source, tally, buffer, apart if may_write_over(flow) else _as_it_is)
    return work


def _as_it_is(datapoint: Datapoint) -> Datapoint:
    return datapoint
