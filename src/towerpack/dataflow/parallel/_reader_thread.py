"""Threads that read a flow in advance, in order, and copy datapoints whose memory is reused."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import NamedTuple

from towerpack.dataflow._iteration_state import State, Stream, Tally
from towerpack.dataflow.datapoints import Datapoint, duplicate
from towerpack.dataflow.parallel._options import Options
from towerpack.dataflow.parallel._work_units import Inputs, Work, WorkSource

_AHEAD = 256


class Entry(NamedTuple):
    datapoint: Datapoint
    state: State  # after the datapoint
    skipped: int  # number of bad datapoints that were skipped before it


class Reader(threading.Thread, WorkSource):
    """Thread that reads a stream in advance and closes it at the end.

    Workers turn each `group` datapoints into one. `start` is the number of groups that were done
    before. `reused` says that the source may overwrite earlier datapoints.
    """

    def __init__(
        self,
        stream: Stream,
        tally: Tally,
        *,
        reused: bool,
        group: int,
        remainder: bool,
        epoch: int,
        start: int,
    ) -> None:
        super().__init__(name="towerpack-data-reader", daemon=True)
        self.at_source = threading.Lock()
        """Lock that is held while code of the source runs."""
        self._stream = stream
        self._tally = tally
        self._reused = reused
        self.group = group
        self._limit = max(_AHEAD, group)
        self.most = max(1, self._limit // 2 // group)
        self.reads: deque[tuple[State, int]] = deque()
        """State and number of skipped datapoints for each datapoint that workers process."""
        self.last: tuple[State, int] = (None, 0)
        """State and number of skipped datapoints at the end of the source."""
        self.closed = False
        self._epoch = epoch
        self._next = start
        self._remainder = remainder
        self._changed = threading.Condition()
        self._entries: deque[Entry] = deque()
        self._error: BaseException | None = None
        self._ended = self._awaited = False

    def begin(self, options: Options, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._deep = options.backend == "process"
        self.start()

    def run(self) -> None:
        counted = 0
        read: list[Datapoint] = []  # at most one, which is retained if it cannot be copied
        while not self.closed:
            try:
                with self.at_source:
                    if not read:
                        read.append(next(self._stream))
                    datapoint = duplicate(read[0], deep=self._deep) if self._reused else read[0]
                    skipped = self._tally.skipped
                    entry = Entry(datapoint, self._stream.state(), skipped - counted)
            except StopIteration:
                self._end(self._stream.state(), self._tally.skipped - counted)
                break
            except BaseException as error:  # noqa: BLE001  raised in the consumer
                self._fail(error)
            else:
                counted = skipped
                read.clear()
                self._put(entry)
                del datapoint, entry
        with self.at_source:
            self._stream.close()

    def next_work(self) -> tuple[Work, Inputs | None] | None:
        with self._changed:
            count = min(self.size * self.group, len(self._entries))
            if not self._ended:  # only the last group may be smaller
                count -= count % self.group
            entries = [self._entries.popleft() for _ in range(count)]
            self._awaited = len(self._entries) < self.group
            self._changed.notify_all()
        self.reads.extend((entry.state, entry.skipped) for entry in entries)
        count = len(entries) // self.group
        if self._remainder and len(entries) % self.group:
            count += 1
        if not count:
            return None
        start = self._next
        self._next += count
        datapoints = [entry.datapoint for entry in entries[: count * self.group]]
        return (self._epoch, start, self._next), (start * self.group, datapoints)

    def _put(self, entry: Entry) -> None:
        with self._changed:
            self._entries.append(entry)
            if len(self._entries) >= self.group:
                self._wake_consumer()
            self._changed.wait_for(lambda: self.closed or len(self._entries) < self._limit)

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._error = error
            self._wake_consumer()
            self._changed.wait_for(lambda: self.closed or self._error is None)

    def _end(self, state: State, skipped: int) -> None:
        with self._changed:
            self._ended = True
            self.last = state, skipped
            self._wake_consumer()

    def raise_error(self) -> None:
        """Raise the error of the source after the datapoints before it. Then let it retry."""
        with self._changed:
            if len(self._entries) >= self.group:
                return
            error, self._error = self._error, None
            self._changed.notify_all()
        if error is not None:
            raise error

    def is_over(self) -> bool:
        with self._changed:
            return self._ended and not self._entries and self._error is None

    def close(self) -> None:
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    def _wake_consumer(self) -> None:
        if self._awaited:
            self._awaited = False
            self._wake()


@contextlib.contextmanager
def readers_at_rest(timeout_s: float) -> Generator[set[threading.Thread]]:
    """Pause other `Reader` threads where they hold no locks. Yield the paused threads."""
    end = time.monotonic() + timeout_s
    resting: set[threading.Thread] = set()
    with contextlib.ExitStack() as locks:
        for thread in threading.enumerate():
            if not isinstance(thread, Reader) or thread is threading.current_thread():
                continue
            if thread.at_source.acquire(timeout=max(0.0, end - time.monotonic())):
                locks.callback(thread.at_source.release)
                resting.add(thread)
        yield resting
