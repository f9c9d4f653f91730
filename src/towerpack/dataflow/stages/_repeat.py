"""Passes one after another."""

from __future__ import annotations

import math

import numpy as np

from towerpack._core.errors import ConfigError, DataFlowError
from towerpack._core.logs import get_logger
from towerpack.dataflow._arguments import integer_of
from towerpack.dataflow._blocks import Block, Positions, read_groups
from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow._flow import (
    DataFlow,
    Length,
    Place,
    Wrapper,
    compile_flow,
    length_of,
    open_flow,
    pipeline_of,
)
from towerpack.dataflow._plan import Node
from towerpack.dataflow._stream import State, Stream

log = get_logger(__name__)


class RepeatedData(Wrapper):
    """Passes over `ds` one after another, each with its own epoch.

    Pass k of epoch e is epoch e * n + k of `ds`; with n = -1 it is epoch k.

    Contract: in order; `n * len(ds)`, or infinite; not random, but random stages in `ds` differ
    from pass to pass; thread- and fork-safe as `ds` is; resumable as `ds` is.

    Args:
        ds: What to repeat.
        n: How often; -1 is for ever.

    Raises:
        DataFlowError: A pass to be repeated for ever has no datapoints; raised while iterating.
    """

    lifts = True

    def __init__(self, ds: DataFlow, n: int = -1) -> None:
        super().__init__(ds)
        n = integer_of(n, "n")
        if n != -1 and n < 1:
            raise ConfigError(f"Nothing can be repeated {n} times.", expected="-1, or 1 or more")
        self.n = n
        self._told = False

    def tell_if_short(self, datapoints: int) -> None:
        """Warn, once, if a pass has given fewer datapoints than the flow's length says."""
        if not self._told:
            self._told = tell_if_short(self.ds, datapoints)

    def length(self) -> Length:
        length = length_of(self.ds)
        if self.n == -1:
            return math.inf
        return None if length is None else length * self.n

    def identity(self) -> str:
        return "" if self.n == -1 else str(self.n)

    def compile(self, place: Place) -> Node | None:
        inner = compile_flow(self.ds, place)
        if inner is None:
            return None
        if inner.size == 0 and self.n == -1:
            raise empty_error(self.ds)
        return RepeatNode(inner, self.n)

    def open(self, place: Place, epoch: int, state: State) -> Stream:
        return RepeatStream(self, place, epoch, state)


class RepeatNode(Node):
    """Reads position p of a repeated plan as position p % size of its epoch p // size."""

    def __init__(self, inner: Node, n: int) -> None:
        self.inner = inner
        self.passes_on = (inner,)
        self.chunk = chunk_of(inner)
        self.size = None if n == -1 or inner.size is None else inner.size * n
        self._n = 0 if n == -1 else n
        self._period = inner.size

    def locate(self, epoch: int, position: int) -> tuple[int, int]:
        """Epoch and position in the repeated plan."""
        if self._period is None:
            return epoch * self._n, position
        turn, rest = divmod(position, self._period)
        return epoch * self._n + turn, rest

    def get(self, epoch: int, position: int) -> Datapoint:
        return self.inner.get(*self.locate(epoch, position))

    def read(self, epoch: int, positions: Positions) -> Block:
        return read_turns(self.inner, epoch * self._n, positions)


def chunk_of(inner: Node) -> int:
    """How far to read ahead in repeated passes: not over many short ones."""
    return inner.chunk if inner.size is None else max(1, min(inner.chunk, inner.size))


def read_turns(inner: Node, first: int, positions: Positions, step: int = 1) -> Block:
    """Read passes `first`, `first + step`, ... of a plan as one long pass."""
    period = inner.size
    if period is None:
        return inner.read(first, positions)
    if isinstance(positions, range):
        turn, start = divmod(positions.start, period)
        stop = start + len(positions)
        if stop <= period:
            return inner.read(first + turn * step, range(start, stop))
        positions = np.arange(positions.start, positions.stop, dtype=np.int64)
    turns, rest = np.divmod(positions, period)
    return read_groups(turns, rest, lambda turn, at: inner.read(first + turn * step, at))


class RepeatStream(Stream):
    """Opens one pass after another; stays at the end of a pass until asked for more."""

    def __init__(self, flow: RepeatedData, place: Place, epoch: int, state: State) -> None:
        self._flow = flow
        self._place = place
        self._first = 0 if flow.n == -1 else epoch * flow.n
        self._turn, self._empty = (0, True) if state is None else (state["turn"], state["empty"])
        self._inner = self._open(None if state is None else state["inner"])
        # Of this pass, unless it was begun in the middle.
        self._given = 0
        self._whole = state is None

    def __next__(self) -> Datapoint:
        while True:
            try:
                datapoint = next(self._inner)
            except StopIteration:
                if self._empty and self._flow.n == -1:
                    raise empty_error(self._flow.ds) from None
                if self._whole:
                    self._flow.tell_if_short(self._given)
                self._given, self._whole = 0, True
                if self._turn + 1 == self._flow.n:
                    raise
                self._turn += 1
                self._empty = True
                self._inner = self._open(None)
            else:
                self._empty = False
                self._given += 1
                return datapoint

    def state(self) -> State:
        return {"turn": self._turn, "empty": self._empty, "inner": self._inner.state()}

    def close(self) -> None:
        self._inner.close()

    def _open(self, state: State) -> Stream:
        return open_flow(self._flow.ds, self._place, self._first + self._turn, state)


def empty_error(ds: DataFlow) -> DataFlowError:
    """The error for a flow that would be repeated for ever without giving anything."""
    return DataFlowError(
        "A pass that is to be repeated for ever has no datapoints.",
        got=f"nothing from {pipeline_of(ds)}",
        fix="check its source; a BatchData that is larger than a pass drops all of it",
    )


def tell_if_short(ds: DataFlow, datapoints: int) -> bool:
    """Warn if that many datapoints are fewer than a flow's length says; gives whether they are."""
    length = length_of(ds)
    if length is None or datapoints >= length:
        return False
    log.warning(
        "len() of the flow is %d, but a pass over it ended after %d datapoints. Find what is "
        "missing, or correct its __len__: without steps_per_epoch, epochs go by that. (%s)",
        length,
        datapoints,
        pipeline_of(ds),
    )
    return True
