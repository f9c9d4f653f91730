"""Passes of a chosen length."""

from __future__ import annotations

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
        # Where a pass over a stream began; saves reading there, and changes nothing else.
        self._starts: dict[tuple[int, str, int], tuple[int, State]] = {}

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

    def remember(self, place: Place, epoch: int, start: tuple[int, State]) -> None:
        """Keep where pass `epoch` begins; the last one of each place and seed is enough."""
        key = (place.seed, place.branch, epoch)
        self._starts = {k: v for k, v in self._starts.items() if k[:2] != key[:2]}
        self._starts[key] = start

    def remembered(self, place: Place, epoch: int) -> tuple[int, State] | None:
        """Where pass `epoch` begins, if the one before it ended here."""
        return self._starts.get((place.seed, place.branch, epoch))


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
        self._empty = True
        self._done = 0
        self._skip = 0
        if state is not None:
            self._done, self._turn = state["done"], state["turn"]
            self._empty, self._skip = state["empty"], state["skip"]
            self._inner = self._open(state["inner"])
            return
        self._turn, inner = self._start()
        self._inner = self._open(inner)

    def __next__(self) -> Datapoint:
        while self._skip:
            self._next()
            self._skip -= 1
        if self._done >= self._flow.size:
            if self._flow.keep_state:
                start = (self._turn, self._inner.state())
                self._flow.remember(self._place, self._epoch + 1, start)
            raise StopIteration
        datapoint = self._next()
        self._done += 1
        return datapoint

    def state(self) -> State:
        return {
            "done": self._done,
            "turn": self._turn,
            "empty": self._empty,
            "skip": self._skip,
            "inner": self._inner.state(),
        }

    def close(self) -> None:
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

    def _start(self) -> tuple[int, State]:
        """Epoch and state of `ds` at which the pass begins; sets how much to skip from there."""
        size = self._flow.size
        length = length_of(self._flow.ds)
        if not self._flow.keep_state:
            turns = -(-size // length) if isinstance(length, int) and length else _FAR
            return self._epoch * (1 if infinite(length) else turns), None
        known = self._flow.remembered(self._place, self._epoch)
        if known is not None:
            # A pass that ended exactly here has given something: it is not an empty one.
            self._empty = False
            return known
        self._skip = self._epoch * size
        if isinstance(length, int) and length:
            turn, self._skip = divmod(self._skip, length)
            return turn, None
        return 0, None
