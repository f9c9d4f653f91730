"""Passes of a chosen length."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from towerpack._core.errors import ConfigError
from towerpack.dataflow._ambient import AGAIN
from towerpack.dataflow._arguments import integer_of
from towerpack.dataflow._blocks import Block, Positions
from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow._flow import (
    DataFlow,
    Length,
    Place,
    Wrapper,
    compile_flow,
    length_of,
    open_flow,
)
from towerpack.dataflow._plan import Node
from towerpack.dataflow._stream import State, Stream, Tally
from towerpack.dataflow.stages._repeat import chunk_of, empty_error, read_turns

Key = tuple[int, str, int]
Left = tuple[int, Stream, Tally]
"""The turn, its stream, and what that counts in."""


class FixedSizeData(Wrapper):
    """Passes of exactly `size` datapoints, whatever the length of `ds`.

    With `keep_state`, a pass goes on where the one before stopped: pass e holds datapoints
    e * size to (e + 1) * size - 1 of endlessly repeated passes over `ds`. Without, every pass
    begins with a new pass over `ds`. Either way a pass that needs more than `ds` has goes on with
    another pass over it.

    Contract: in order; `size`; not random; thread- and fork-safe as `ds` is; resumable as `ds` is.
    A pass that is started afresh in the middle of a `ds` without a plan reads up to there.

    Args:
        ds: Any flow that is not empty.
        size: Datapoints in a pass.
        keep_state: Go on rather than begin again.
    """

    def __init__(self, ds: DataFlow, size: int, keep_state: bool = True) -> None:
        super().__init__(ds)
        size = integer_of(size, "size")
        if size < 1:
            raise ConfigError(f"A pass of {size} holds nothing.", expected="1 or more")
        self.size = size
        self.keep_state = keep_state
        # Streams that wait where a pass ended. They save the next pass from reading up to there,
        # and change nothing else.
        self._waiting: dict[Key, Left] = {}

    def length(self) -> Length:
        return self.size

    def identity(self) -> str:
        return str(self.size) if self.keep_state else f"{self.size}, afresh"

    def compile(self, place: Place) -> Node | None:
        inner = compile_flow(self.ds, place)
        if inner is None:
            return None
        if inner.size == 0:
            raise empty_error(self.ds)
        return FixedNode(inner, self)

    def open(self, place: Place, epoch: int, state: State) -> Stream:
        return FixedStream(self, place, epoch, state)

    def leave(self, place: Place, epoch: int, left: Left) -> None:
        """Leave a stream to pass `epoch`, which begins where it is; one for each place and seed."""
        key = (place.seed, place.branch, epoch)
        self._waiting = {k: v for k, v in self._waiting.items() if k[:2] != key[:2]}
        self._waiting[key] = left

    def take(self, place: Place, epoch: int) -> Left | None:
        """What was left to pass `epoch`. Only one iterator gets it."""
        return self._waiting.pop((place.seed, place.branch, epoch), None)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_waiting": {}}


@dataclass(frozen=True)
class Beginning:
    """Where a pass begins in the passes that it is made of.

    Attributes:
        first: Their epochs are `first`, `first + step`, ...
        step: See `first`.
        turn: Which of them the pass begins in.
        skip: How many datapoints come before it there.
    """

    first: int
    step: int
    turn: int
    skip: int


def beginning(flow: FixedSizeData, epoch: int, period: int | None) -> Beginning:
    """Where pass `epoch` begins; `period` is the length of `ds`, if that is known and finite."""
    if not flow.keep_state:
        return Beginning(epoch, AGAIN, 0, 0)
    again, number = divmod(epoch, AGAIN)
    before = number * flow.size
    turn, skip = (0, before) if period is None else divmod(before, period)
    return Beginning(again * AGAIN, 1, turn, skip)


class FixedNode(Node):
    """Reads a stretch of the repeated passes of another plan."""

    def __init__(self, inner: Node, flow: FixedSizeData) -> None:
        self.inner = inner
        self.size = flow.size
        self.chunk = chunk_of(inner)
        self._flow = flow

    def read(self, epoch: int, positions: Positions) -> Block:
        begin = beginning(self._flow, epoch, self.inner.size)
        if isinstance(positions, range):
            shifted = range(positions.start + begin.skip, positions.stop + begin.skip)
        else:
            shifted = positions + np.int64(begin.skip)
        first = begin.first + begin.turn * begin.step
        return read_turns(self.inner, first, shifted, begin.step)


class FixedStream(Stream):
    """Takes a fixed number of datapoints from passes that can only be read in order."""

    def __init__(self, flow: FixedSizeData, place: Place, epoch: int, state: State) -> None:
        self._flow = flow
        self._place = place
        self._epoch = epoch
        length = length_of(flow.ds)
        self._begin = beginning(flow, epoch, length if isinstance(length, int) and length else None)
        self._turn, self._skip = self._begin.turn, self._begin.skip
        self._done = 0
        self._empty = True
        self._end: State = None
        # The stream may go over to the next pass, whose tally is another one.
        self._total = place.tally or Tally()
        self._tally = self._total.part()
        waiting = flow.take(place, epoch) if state is None else None
        if state is not None:
            self._done, self._turn = state["done"], state["turn"]
            self._empty, self._skip = state["empty"], state["skip"]
            self._inner = self._open(state["inner"])
        elif waiting is not None:
            self._turn, self._inner, self._tally = waiting
            self._skip = 0
            self._empty = False  # it has given something to the pass before
        else:
            self._inner = self._open(None)

    def __next__(self) -> Datapoint:
        while self._skip:
            self._next()
            self._skip -= 1
        if self._done >= self._flow.size:
            self._finish()
            raise StopIteration
        datapoint = self._next()
        self._done += 1
        return datapoint

    def state(self) -> State:
        if self._end is not None:
            return self._end
        return {
            "done": self._done,
            "turn": self._turn,
            "empty": self._empty,
            "skip": self._skip,
            "inner": self._inner.state(),
        }

    def close(self) -> None:
        if self._end is None:  # otherwise it belongs to the next pass
            self._inner.close()

    def _finish(self) -> None:
        if self._end is None:
            self._end = self.state()
            if self._flow.keep_state:
                left = (self._turn, self._inner, self._tally)
                self._flow.leave(self._place, self._epoch + 1, left)
            else:
                self._inner.close()

    def _next(self) -> Datapoint:
        while True:
            before = self._tally.skipped
            try:
                datapoint = next(self._inner)
            except StopIteration:
                if self._empty:
                    raise empty_error(self._flow.ds) from None
                self._turn += 1
                self._empty = True
                self._inner = self._open(None)
            else:
                self._empty = False
                return datapoint
            finally:
                self._total.skipped += self._tally.skipped - before

    def _open(self, state: State) -> Stream:
        epoch = self._begin.first + self._turn * self._begin.step
        before = self._tally.skipped
        place = replace(self._place, tally=self._tally)
        stream = open_flow(self._flow.ds, place, epoch, state)
        self._total.skipped += self._tally.skipped - before
        return stream
