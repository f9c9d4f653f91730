"""Streams: what one iteration over a flow is made of. Each knows where it is.

A stream's state is made of integers, strings, lists and dicts. It describes the position *before*
the datapoint that `next` would give, also after `next` raised: a failed datapoint is tried again.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

from towerpack._core.errors import DataFlowError, StateError, TowerpackError
from towerpack.dataflow._ambient import AMBIENT, Ambient
from towerpack.dataflow._blocks import to_rows
from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow._plan import Node

State = Any


class Tally:
    """What one iteration, with all its passes, knows besides its position.

    Attributes:
        skipped: Bad datapoints left out by `on_error="skip"`.
        told: Stages that have said what they say once.
        closing: What to call when the iteration is closed.
    """

    def __init__(self, skipped: int = 0) -> None:
        self.skipped = skipped
        self.told: set[int] = set()
        self.closing: list[Callable[[], None]] = []

    def uncount(self, state: dict[str, Any]) -> None:
        """What a resume reads again will be left out again, and counted then.

        The number is below 0 until then if a pass before this one had counted it.
        """
        self.skipped -= check_count(state.get("again"), sys.maxsize)

    def part(self) -> Tally:
        """One that counts by itself, for what may outlive this one; the rest is shared."""
        tally = Tally()
        tally.told, tally.closing = self.told, self.closing
        return tally


class Stream(ABC):
    """One running iteration of one stage."""

    @abstractmethod
    def __next__(self) -> Datapoint: ...

    def __iter__(self) -> Iterator[Datapoint]:
        return self

    @abstractmethod
    def state(self) -> State:
        """Where the stream is; `open` of an equal stage continues from it."""

    def close(self) -> None:
        """Give up what the stream holds. Wrapping streams pass it on."""
        return


class PlanStream(Stream):
    """Reads a plan from one position on. Its state is that position."""

    def __init__(self, node: Node, epoch: int, state: State) -> None:
        self._node = node
        self._get = node.get
        self._epoch = epoch
        self._stop = sys.maxsize if node.size is None else node.size
        self._position = check_count(state, self._stop)
        self._chunk = node.chunk
        self._rows: list[Datapoint] = []
        self._first = self._position

    def __next__(self) -> Datapoint:
        position = self._position
        if position >= self._stop:
            raise StopIteration
        try:
            if self._chunk == 1:
                datapoint = self._get(self._epoch, position)
            else:
                datapoint = self._read_ahead(position)
        except StopIteration as error:  # it would seem to be the end
            raise DataFlowError(
                f"StopIteration was raised where datapoint {position} was to be read.",
                fix="next(iterator, default) does not raise it; see the cause above",
            ) from error
        self._position = position + 1
        return datapoint

    def state(self) -> State:
        return self._position

    def _read_ahead(self, position: int) -> Datapoint:
        index = position - self._first
        if index >= len(self._rows):
            stop = min(position + self._chunk, self._stop)
            self._rows = to_rows(self._node.read(self._epoch, range(position, stop)))
            self._first, index = position, 0
        return self._rows[index]


class ReplayStream(Stream):
    """Runs code of the user's that only knows how to start: a resume runs it again and skips.

    Args:
        start: Starts one pass.
        ambient: Makes what flows iterated inside take their seed and epoch from.
        name: Of the flow, for messages.
        state: How many datapoints to skip.
    """

    def __init__(
        self,
        start: Callable[[], Iterator[Datapoint]],
        ambient: Callable[[], Ambient],
        name: str,
        state: State,
    ) -> None:
        self._start = start
        self._make_ambient = ambient
        self._name = name
        self._count = check_count(state, sys.maxsize)
        self._ambient: Ambient | None = None
        self._iterator: Iterator[Datapoint] | None = None

    def __next__(self) -> Datapoint:
        if self._iterator is None:
            self._ambient = self._make_ambient()
        token = AMBIENT.set(self._ambient)
        try:
            if self._iterator is None:
                self._iterator = self._restart()
            datapoint = next(self._iterator)
        except StopIteration:
            raise
        except BaseException as error:
            # A generator that raised is finished and would seem to end here: start it again.
            self._iterator = None
            if isinstance(error, TowerpackError) or not isinstance(error, Exception):
                raise
            raise DataFlowError(
                f"{self._name} raised {type(error).__name__} at datapoint {self._count}: {error}",
                fix="see the cause above; next() tries this datapoint again",
            ) from error
        finally:
            AMBIENT.reset(token)
        self._count += 1
        return datapoint

    def state(self) -> State:
        return self._count

    def close(self) -> None:
        close = getattr(self._iterator, "close", None)
        if close is not None:
            close()

    def _restart(self) -> Iterator[Datapoint]:
        iterator = self._start()
        for done in range(self._count):
            try:
                next(iterator)
            except StopIteration:
                raise ended_early(self._name, done, self._count) from None
        return iterator


class WindowStream(Stream):
    """Takes datapoints in windows, and makes a list of datapoints of each.

    Its state is where the current window began, and how much of what it gave is used up; a resume
    reads that window again.

    Args:
        inner: What is read.
        size: Datapoints in a window; the last may have fewer.
        transform: From the window's index and datapoints to what is handed on.
        state: As `state()` gave it.
        tally: What `inner` counts in.
    """

    def __init__(
        self,
        inner: Stream,
        size: int,
        transform: Callable[[int, list[Datapoint]], list[Datapoint]],
        state: State,
        tally: Tally | None,
    ) -> None:
        self._inner = inner
        self._tally = tally or Tally()
        self._size = size
        self._transform = transform
        self._window, self._used = (0, 0) if state is None else (state["window"], state["used"])
        self._begin = inner.state()
        self._skipped = 0  # of this window
        # Not uncounted before it is read again, which whatever stands above may never ask for.
        self._resumed = state
        if state is not None:
            self._skipped = check_count(state.get("again"), sys.maxsize)
        self._pending: list[Datapoint] = []
        self._ready: list[Datapoint] | None = None
        self._ended = False

    def __next__(self) -> Datapoint:
        while self._ready is None or self._used >= len(self._ready):
            if self._ended:
                raise StopIteration
            if self._ready is not None:
                self._forward()
            self._ready = self._fill()
        datapoint = self._ready[self._used]
        self._used += 1
        return datapoint

    def state(self) -> State:
        if self._ready is not None and self._used >= len(self._ready) and not self._ended:
            self._forward()
        state = {"window": self._window, "used": self._used, "inner": self._begin}
        return with_skipped(state, self._skipped)

    def close(self) -> None:
        self._inner.close()

    def _forward(self) -> None:
        """Everything of this window was used: the next one begins here."""
        self._begin = self._inner.state()
        self._skipped = 0
        self._window += 1
        self._used = 0
        self._ready = None

    def _fill(self) -> list[Datapoint]:
        pending = self._pending  # kept if `inner` raises, so that nothing is lost
        ended = False
        if self._resumed is not None:
            self._tally.uncount(self._resumed)
            self._resumed, self._skipped = None, 0
        before = self._tally.skipped  # which other branches of the pipeline count in, too
        try:
            while len(pending) < self._size:
                pending.append(next(self._inner))
        except StopIteration:
            ended = True
        finally:
            self._skipped += self._tally.skipped - before
        ready = self._transform(self._window, pending) if pending else []
        self._pending = []
        self._ended = ended
        return ready


def with_skipped(state: dict[str, Any], again: int) -> dict[str, Any]:
    """A state, with how many bad datapoints a resume leaves out again. See `Tally.uncount`."""
    return {**state, "again": again} if again else state


def ended_early(
    name: object, found: int, wanted: int, origin: str = "the state was taken from"
) -> StateError:
    """The error for data that end before the place that a state is of."""
    return StateError(
        f"{name} ended before the place where it is to continue.",
        got=f"{found} datapoints",
        expected=f"at least {wanted}",
        fix=f"the data differ from those that {origin}",
    )


def inner_state(state: State) -> State:
    """The part of a stage's state that belongs to what it wraps."""
    return None if state is None else state["inner"]


def check_count(state: State, limit: int) -> int:
    """A state that is a number of datapoints."""
    if state is None:
        return 0
    if isinstance(state, bool) or not isinstance(state, int) or not 0 <= state <= limit:
        raise StateError(
            f"A position of {state!r:.200} is not within a pass.",
            expected=f"an integer in 0..{limit}",
            fix="the state is damaged, was taken from other data, or was taken with ordered=False, "
            "which it then needs again",
        )
    return state
