"""Passes of a chosen length."""

from __future__ import annotations

from typing import Any

import numpy as np

from towerpack._core.errors import ConfigError
from towerpack.dataflow._blocks import Block, Positions
from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow._flow import (
    DataFlow,
    Length,
    Place,
    Wrapper,
    compile_flow,
    infinite,
    length_of,
    open_flow,
)
from towerpack.dataflow._plan import Node
from towerpack.dataflow._stream import State, Stream
from towerpack.dataflow.stages._repeat import empty_error, read_turns

_FAR = 1 << 20
Key = tuple[int, str, int]


class FixedSizeData(Wrapper):
    """Passes of exactly `size` datapoints, whatever the length of `ds`.

    With `keep_state`, a pass goes on where the one before stopped: pass e holds datapoints
    e * size to (e + 1) * size - 1 of endlessly repeated passes over `ds`. Without, every pass
    begins with a new pass over `ds`. Either way a pass that needs more than `ds` has goes on with
    its next epoch.

    Contract: in order; `size`; not random; thread- and fork-safe as `ds` is; resumable as `ds` is.
    A pass that is started afresh in the middle of a `ds` without a plan reads up to there.

    Args:
        ds: Any flow that is not empty.
        size: Datapoints in a pass.
        keep_state: Go on rather than begin again.
    """

    def __init__(self, ds: DataFlow, size: int, *, keep_state: bool = True) -> None:
        super().__init__(ds)
        if size < 1:
            raise ConfigError(f"A pass of {size} holds nothing.", expected="1 or more")
        self.size = size
        self.keep_state = keep_state
        # Streams that wait where a pass ended. They save the next pass from reading up to there,
        # and change nothing else.
        self._waiting: dict[Key, tuple[int, Stream]] = {}

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
        return FixedNode(inner, self.size, self.keep_state)

    def open(self, place: Place, epoch: int, state: State) -> Stream:
        return FixedStream(self, place, epoch, state)

    def leave(self, place: Place, epoch: int, turn: int, stream: Stream) -> None:
        """Leave a stream to pass `epoch`, which begins where it is; one for each place and seed."""
        key = (place.seed, place.branch, epoch)
        self._waiting = {k: v for k, v in self._waiting.items() if k[:2] != key[:2]}
        self._waiting[key] = (turn, stream)

    def take(self, place: Place, epoch: int) -> tuple[int, Stream] | None:
        """The stream that was left to pass `epoch`. Only one iterator gets it."""
        return self._waiting.pop((place.seed, place.branch, epoch), None)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_waiting": {}}


class FixedNode(Node):
    """Reads a stretch of the repeated passes of another plan."""

    def __init__(self, inner: Node, size: int, keep_state: bool) -> None:
        self.inner = inner
        self.size = size
        self.chunk = inner.chunk
        self._keep_state = keep_state

    def read(self, epoch: int, positions: Positions) -> Block:
        first, offset = self._start(epoch)
        if isinstance(positions, range):
            shifted: Positions = range(positions.start + offset, positions.stop + offset)
        else:
            shifted = positions + np.int64(offset)
        return read_turns(self.inner, first, shifted)

    def get(self, epoch: int, position: int) -> Datapoint:
        first, offset = self._start(epoch)
        period = self.inner.size
        turn, rest = (0, position + offset) if period is None else divmod(position + offset, period)
        return self.inner.get(first + turn, rest)

    def _start(self, epoch: int) -> tuple[int, int]:
        period = self.inner.size
        if self._keep_state:
            start = epoch * (self.size or 0)
            return (0, start) if period is None else divmod(start, period)
        return epoch * (1 if period is None else -(-(self.size or 0) // period)), 0


class FixedStream(Stream):
    """Takes a fixed number of datapoints from passes that can only be read in order."""

    def __init__(self, flow: FixedSizeData, place: Place, epoch: int, state: State) -> None:
        self._flow = flow
        self._place = place
        self._epoch = epoch
        self._done = self._skip = self._turn = 0
        self._empty = True
        self._end: State = None
        waiting = flow.take(place, epoch) if state is None else None
        if state is not None:
            self._done, self._turn = state["done"], state["turn"]
            self._empty, self._skip = state["empty"], state["skip"]
            self._inner = self._open(state["inner"])
        elif waiting is not None:
            self._turn, self._inner = waiting
            self._empty = False  # it has given something to the pass before
        else:
            self._turn, self._skip = self._beginning()
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
                self._flow.leave(self._place, self._epoch + 1, self._turn, self._inner)
            else:
                self._inner.close()

    def _next(self) -> Datapoint:
        while True:
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

    def _open(self, state: State) -> Stream:
        return open_flow(self._flow.ds, self._place, self._turn, state)

    def _beginning(self) -> tuple[int, int]:
        """Epoch of `ds` in which the pass begins, and how many datapoints come before it there."""
        size = self._flow.size
        length = length_of(self._flow.ds)
        period = length if isinstance(length, int) and length else None
        if self._flow.keep_state:
            before = self._epoch * size
            return (0, before) if period is None else divmod(before, period)
        if infinite(length):
            return self._epoch, 0
        return self._epoch * (_FAR if period is None else -(-size // period)), 0
