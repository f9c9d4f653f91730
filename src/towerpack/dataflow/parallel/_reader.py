"""A thread that reads a source ahead, for what can only be read in order."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, NamedTuple

from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow._stream import State, Stream, Tally
from towerpack.dataflow.parallel._job import Inputs, Work
from towerpack.dataflow.parallel._work import WorkSource

Keep = Callable[[Datapoint], Datapoint]


class Entry(NamedTuple):
    """What was read.

    Attributes:
        datapoint: The next one.
        state: Of the source after it.
        skipped: How many bad datapoints the source left out before it.
    """

    datapoint: Datapoint
    state: State
    skipped: int


class Buffer:
    """What was read and not used. The thread knows this, and not the iteration that it serves.

    Args:
        limit: How many datapoints to be ahead.
        wake: Called when something can be taken that was waited for.
        group: How many are taken at a time, except at the end. At most `limit`.
    """

    def __init__(self, limit: int, wake: Callable[[], None], group: int = 1) -> None:
        self.group = group
        self.limit = limit
        self._wake = wake
        self._changed = threading.Condition()
        self._entries: deque[Entry] = deque()
        self._error: BaseException | None = None
        self._ended = False
        self._closed = False
        self._hungry = False
        self._held = False
        self._waiting = False
        self._over = False
        self.skipped_last = 0
        """How many bad datapoints the source left out after the last good one."""
        self.state_last: State = None
        """Of the source at its end."""

    def put(self, entry: Entry) -> bool:
        """Add an entry, when there is room. Whether to go on."""
        with self._changed:
            self._entries.append(entry)
            if len(self._entries) >= self.group:
                self._tell()
            self._wait_for(lambda: len(self._entries) < self.limit)
            return not self._closed

    def fail(self, error: BaseException) -> bool:
        """The source raised. Returns when it is to be tried again; whether to go on."""
        with self._changed:
            self._error = error
            self._tell()
            self._wait_for(lambda: self._error is None)
            return not self._closed

    def end(self, state: State, skipped: int) -> None:
        """The source is exhausted."""
        with self._changed:
            self._ended = True
            self.skipped_last, self.state_last = skipped, state
            self._tell()

    def take(self, count: int) -> list[Entry]:
        """Up to `count` entries that are there now, in whole groups until the end."""
        with self._changed:
            there = min(count, len(self._entries))
            if not self._ended:
                there -= there % self.group
            taken = [self._entries.popleft() for _ in range(there)]
            self._hungry = len(self._entries) < self.group
            self._changed.notify_all()
            return taken

    def raise_error(self) -> None:
        """Raise what the source raised, and let it try again, once what is before it was taken.

        Raises:
            Exception: The source's.
        """
        with self._changed:
            if len(self._entries) >= self.group:
                return
            error, self._error = self._error, None
            self._changed.notify_all()
        if error is not None:
            raise error

    @property
    def ended(self) -> bool:
        """Whether there is nothing left, and nothing will come."""
        with self._changed:
            return self._ended and not self._entries and self._error is None

    def close(self) -> None:
        """End the thread, when the source lets it."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def closed(self) -> bool:
        """Whether nobody listens any more."""
        return self._closed

    def hold(self, timeout_s: float) -> bool:
        """Keep the thread here when it next comes by, until `let_go`. Whether it is here."""
        with self._changed:
            self._held = True
            self._changed.wait_for(lambda: self._waiting or self._over, timeout_s)
            return self._waiting

    def let_go(self) -> None:
        """The thread may go on."""
        with self._changed:
            self._held = False
            self._changed.notify_all()

    def over(self) -> None:
        """The thread ends now."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _wait_for(self, ready: Callable[[], bool]) -> None:
        self._waiting = True
        if self._held:
            self._changed.notify_all()
        self._changed.wait_for(lambda: not self._held and (self._closed or ready()))
        self._waiting = False

    def _tell(self) -> None:
        if self._hungry:
            self._hungry = False
            self._wake()


_BUFFERS: weakref.WeakKeyDictionary[threading.Thread, Buffer] = weakref.WeakKeyDictionary()
"""Of all threads that were started, while they last."""


def read_ahead(stream: Stream, tally: Tally, buffer: Buffer, keep: Keep) -> None:
    """Start the thread.

    Args:
        stream: What is read; the thread closes it.
        tally: Where the stream counts what it leaves out.
        buffer: Where to.
        keep: Makes of a datapoint what is kept of it while the stream goes on.
    """
    arguments: tuple[Any, ...] = (stream, tally, buffer, keep)
    thread = threading.Thread(
        target=_run, args=arguments, name="towerpack-data-reader", daemon=True
    )
    _BUFFERS[thread] = buffer
    thread.start()


@contextmanager
def readers_at_rest(timeout_s: float) -> Generator[int]:
    """Keep the other threads of this module out of their sources, where they may hold any lock.

    Args:
        timeout_s: How long to wait for those that are in one.

    Yields:
        How many are kept; those that ended meanwhile do not count.
    """
    end = time.monotonic() + timeout_s
    # A fork has its parent's table, but not its threads.
    held = {thread: buffer for thread, buffer in _BUFFERS.items() if thread.is_alive()}
    held.pop(threading.current_thread(), None)
    kept = 0
    try:
        for thread, buffer in held.items():
            if buffer.hold(max(0.0, end - time.monotonic())):
                kept += 1
            else:  # it ends, or is still in its source
                thread.join(max(0.0, end - time.monotonic()))
        yield kept
    finally:
        for buffer in held.values():
            buffer.let_go()


def _run(stream: Stream, tally: Tally, buffer: Buffer, keep: Keep) -> None:
    try:
        _read(stream, tally, buffer, keep)
    finally:
        buffer.over()


def _read(stream: Stream, tally: Tally, buffer: Buffer, keep: Keep) -> None:
    counted = 0
    read: list[Datapoint] = []  # one, which is not lost if it cannot be kept at first
    going = not buffer.closed
    while going:
        try:
            if not read:
                read.append(next(stream))
            entry = Entry(keep(read[0]), stream.state(), tally.skipped - counted)
        except StopIteration:
            buffer.end(stream.state(), tally.skipped - counted)
            break
        except BaseException as error:  # noqa: BLE001  it is raised in the consumer
            going = buffer.fail(error)
        else:
            counted = tally.skipped
            read.clear()
            going = buffer.put(entry)
            del entry
    stream.close()


class ReadWork(WorkSource):
    """Datapoints that the thread reads, in groups that become one each.

    Args:
        epoch: The pass.
        start: How many groups were done before.
        buffer: Where the thread puts datapoints.
        remainder: Whether the last group may be smaller.
    """

    def __init__(self, epoch: int, start: int, buffer: Buffer, remainder: bool) -> None:
        self.group = buffer.group
        super().__init__(1, max(1, buffer.limit // 2 // self.group))
        self._epoch = epoch
        self._next = start
        self._buffer = buffer
        self._remainder = remainder
        self.reads: deque[tuple[State, int]] = deque()
        """For each datapoint that was taken here and is not handed on: the state of the source
        after it, and how many bad datapoints it left out before it."""

    def next_work(self) -> tuple[Work, Inputs | None] | None:
        entries = self._buffer.take(self.size * self.group)
        self.reads.extend((entry.state, entry.skipped) for entry in entries)
        count = len(entries) // self.group
        if self._remainder and len(entries) % self.group:
            count += 1
        if not count:
            return None
        start = self._next
        self._next += count
        datapoints = [entry.datapoint for entry in entries[: count * self.group]]
        inputs = (start * self.group, datapoints)
        return (self._epoch, start, self._next), inputs

    def ended(self) -> bool:
        return self._buffer.ended

    def raise_error(self) -> None:
        self._buffer.raise_error()

    @property
    def skipped_last(self) -> int:
        """How many bad datapoints the source left out after the last good one."""
        return self._buffer.skipped_last

    @property
    def state_last(self) -> State:
        """Of the source at its end."""
        return self._buffer.state_last

    def close(self) -> None:
        self._buffer.close()
