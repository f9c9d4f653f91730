from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from towerpack._core.errors import ConfigError, DataFlowError
from towerpack._core.logs import get_logger
from towerpack.dataflow._flow import DataFlow, length_of
from towerpack.dataflow._iteration_state import InnerStream, State, Stream, Tally, inner_state
from towerpack.dataflow._plan import InnerNode, Node
from towerpack.dataflow._user_code import AGAIN
from towerpack.dataflow.arguments import integer_of
from towerpack.dataflow.datapoints import (
    Block,
    Columns,
    Datapoint,
    Positions,
    as_array,
    duplicate,
    read_groups,
    take,
)
from towerpack.dataflow.pipeline_names import Length, pipeline_of
from towerpack.dataflow.stage_context import StageContext
from towerpack.dataflow.stages._base import PlannedStage, Transform, WindowStage

log = get_logger(__name__)


class RepeatedData(PlannedStage):
    """Repeat passes over a flow, each with its own epoch.

    Random stages in `ds` differ between the passes. Pass k of epoch e is epoch e * n + k of `ds`,
    or epoch k if n is -1.

    Args:
        ds: Flow to repeat.
        n: Number of passes; -1 repeats forever.

    Raises:
        ConfigError: `n` is neither -1 nor positive.
        DataFlowError: An infinitely repeated pass has no datapoints; raised while iterating.
    """

    structural = True

    def __init__(self, ds: DataFlow, n: int = -1) -> None:
        super().__init__(ds)
        self.n = integer_of(n, "n")
        if self.n != -1 and self.n < 1:
            raise ConfigError(f"n must be -1 or at least 1, got {n}.")
        self._begin = partial(_begin_repeated, self.n)

    def resized(self, size: int) -> int:
        return size * self.n

    def length(self) -> Length:
        return math.inf if self.n == -1 else super().length()

    def identity(self) -> str:
        return "" if self.n == -1 else str(self.n)

    def node(self, inner: Node, context: StageContext) -> Node:
        if self.n == -1 and inner.size == 0:
            raise empty_error(self.ds)
        size = None if inner.size is None or self.n == -1 else self.resized(inner.size)
        return PassesNode(inner, size, self._begin)

    def open(self, context: StageContext, epoch: int, state: State) -> Stream:
        return PassesStream(self.ds, context, self._begin(epoch), self.n, state)


class FixedSizeData(PlannedStage):
    """Change the length of a pass to exactly `size` datapoints.

    Args:
        ds: Flow that is read repeatedly.
        size: Number of datapoints in a pass.
        keep_state: Whether a pass continues where the last one stopped. Pass e then contains
            datapoints e * size to (e + 1) * size - 1 of repeated passes over `ds`. Otherwise every
            pass begins with a new pass over `ds`.

    Raises:
        DataFlowError: `ds` is empty; raised while iterating.
    """

    def __init__(self, ds: DataFlow, size: int, keep_state: bool = True) -> None:
        super().__init__(ds)
        self.size = integer_of(size, "size", 1)
        self.keep_state = keep_state
        self.begin = partial(_begin_fixed, self.size, keep_state)
        # Stream at the end of the last pass, for each seed and branch. The next pass continues it.
        self._waiting: dict[tuple[int, str, bool, bool], Waiting] = {}

    def length(self) -> Length:
        return self.size

    def identity(self) -> str:
        return str(self.size) if self.keep_state else f"{self.size}, afresh"  # part of states

    def node(self, inner: Node, context: StageContext) -> Node:
        if inner.size == 0:
            raise empty_error(self.ds)
        return PassesNode(inner, self.size, self.begin)

    def open(self, context: StageContext, epoch: int, state: State) -> Stream:
        return FixedStream(self, self._waiting, context, epoch, state)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_waiting": {}}


class Beginning(NamedTuple):
    """Start of a pass over epochs `first`, `first + step`, … after skipping `skip` datapoints."""

    first: int
    step: int = 1
    skip: int = 0


Begin = Callable[[int], Beginning]
"""Function that returns the start of an epoch's pass. It is pickled without the flow."""


def _begin_repeated(n: int, epoch: int) -> Beginning:
    return Beginning(0 if n == -1 else epoch * n)


def _begin_fixed(size: int, keep_state: bool, epoch: int) -> Beginning:
    if not keep_state:
        return Beginning(epoch, AGAIN)
    again, number = divmod(epoch, AGAIN)
    return Beginning(again * AGAIN, 1, number * size)


class PassesNode(InnerNode):
    def __init__(self, inner: Node, size: int | None, begin: Begin) -> None:
        super().__init__(inner)
        self.forwarded = (inner,)
        self.size = size
        if inner.size is not None:  # do not read ahead over many short passes
            self.chunk = max(1, min(inner.chunk, inner.size))
        self._begin = begin

    def get(self, epoch: int, position: int) -> Datapoint:
        first, step, skip = self._begin(epoch)
        position += skip
        turn, rest = (0, position) if self.inner.size is None else divmod(position, self.inner.size)
        return self.inner.get(first + turn * step, rest)

    def read(self, epoch: int, positions: Positions) -> Block:
        first, step, skip = self._begin(epoch)
        inner, period = self.inner, self.inner.size
        if isinstance(positions, range):
            start = positions.start + skip
            turn, rest = (0, start) if period is None else divmod(start, period)
            stop = rest + len(positions)
            if period is None or stop <= period:
                return inner.read(first + turn * step, range(rest, stop))
            positions = np.arange(start, positions.stop + skip, dtype=np.int64)
        elif skip:
            positions = positions + np.int64(skip)
        if period is None:
            return inner.read(first, positions)
        turns, rests = np.divmod(positions, period)
        return read_groups(turns, rests, lambda turn, part: inner.read(first + turn * step, part))


class PassesStream(InnerStream):
    """Stream over `n` passes of a flow (-1: infinitely many), each opened when it is needed."""

    def __init__(
        self,
        ds: DataFlow,
        context: StageContext,
        begin: Beginning,
        n: int,
        state: State,
        turn: int = 0,
    ) -> None:
        self._ds = ds
        self._context = context
        self._begin = begin
        self._n = n
        self._turn, self._empty = (turn, True) if state is None else (state["turn"], state["empty"])
        self._inner = self._open(inner_state(state))
        self._count = 0  # datapoints of this pass
        self._whole = state is None  # whether this pass is read from its beginning
        self._warned = False

    def __next__(self) -> Datapoint:
        while True:
            try:
                datapoint = next(self._inner)
            except StopIteration:
                if self._empty and self._n == -1:
                    raise empty_error(self._ds) from None
                if self._whole and not self._warned:
                    self._warned = warn_if_shorter_than_len(self._ds, self._count)
                self._count, self._whole = 0, True
                if self._turn + 1 == self._n:
                    raise
                self._turn += 1
                self._empty = True
                self._inner = self._open(None)
            else:
                self._empty = False
                self._count += 1
                return datapoint

    def state(self) -> State:
        return {"turn": self._turn, "empty": self._empty, "inner": self._inner.state()}

    def _open(self, state: State) -> Stream:
        epoch = self._begin.first + self._turn * self._begin.step
        return self._ds.open_in(self._context, epoch, state)


class Waiting(NamedTuple):
    """Stream at the end of a pass, which the next pass continues, with its tally."""

    epoch: int
    passes: PassesStream
    tally: Tally


class FixedStream(Stream):
    def __init__(
        self,
        flow: FixedSizeData,
        waiting: dict[tuple[int, str, bool, bool], Waiting],
        context: StageContext,
        epoch: int,
        state: State,
    ) -> None:
        self._flow = flow
        self._waiting = waiting
        self._epoch = epoch
        self._end: State = None
        # The stream may pass to the next pass, which has another tally.
        self._total = context.tally or Tally()
        self._counted = self._done = self._skip = 0
        self._key = context.seed, context.branch, context.retained, context.traced
        left = waiting.pop(self._key, None) if state is None else None
        if left is not None and left.epoch == epoch:
            _, self._passes, self._tally = left
            self._counted = self._tally.skipped
            return
        self._tally = self._total.part()
        begin = flow.begin(epoch)
        length = length_of(flow.ds)
        turn, self._skip = 0, begin.skip
        if isinstance(length, int) and length:
            turn, self._skip = divmod(begin.skip, length)
        if state is not None:
            self._done, self._skip = state["done"], state["skip"]
        inside = replace(context, tally=self._tally)
        self._passes = PassesStream(flow.ds, inside, begin, -1, inner_state(state), turn)
        self._count()

    def __next__(self) -> Datapoint:
        if self._end is not None:
            raise StopIteration
        try:
            while self._skip:
                next(self._passes)
                self._skip -= 1
            if self._done < self._flow.size:
                datapoint = next(self._passes)
                self._done += 1
                return datapoint
        finally:
            if self._tally.skipped != self._counted:
                self._count()
        self._end = self.state()
        if self._flow.keep_state:
            self._waiting[self._key] = Waiting(self._epoch + 1, self._passes, self._tally)
        else:
            self._passes.close()
        raise StopIteration

    def state(self) -> State:
        if self._end is not None:
            return self._end
        return {"done": self._done, "skip": self._skip, "inner": self._passes.state()}

    def close(self) -> None:
        if self._end is None:  # otherwise the stream belongs to the next pass
            self._passes.close()

    def _count(self) -> None:
        self._total.skipped += self._tally.skipped - self._counted
        self._counted = self._tally.skipped


def empty_error(ds: DataFlow) -> DataFlowError:
    return DataFlowError(
        f"{pipeline_of(ds)} has no datapoints to repeat.",
        fix="check that the source has data, and that a batch is not larger than a pass",
    )


def warn_if_shorter_than_len(ds: DataFlow, datapoints: int) -> bool:
    length = length_of(ds)
    if length is None or datapoints >= length:
        return False
    message = "A pass over %s ended after %d datapoints, but its len() is %d. Correct the len()."
    log.warning(message, pipeline_of(ds), datapoints, length)
    return True


class RepeatedDataPoint(WindowStage):
    """Repeat every datapoint `n` times in a row.

    The wrapped flow runs once for all copies, which do not share arrays. So
    `MapData(RepeatedDataPoint(MapData(ds, decode), 4), augment, rng=True)` decodes an image once
    for four augmented ones.

    Args:
        ds: Flow whose datapoints are repeated.
        n: Number of copies of each datapoint.
    """

    structural = True
    window_size = 1

    def __init__(self, ds: DataFlow, n: int) -> None:
        super().__init__(ds)
        self.n = integer_of(n, "n", 1)

    def resized(self, size: int) -> int:
        return size * self.n

    def identity(self) -> str:
        return str(self.n)

    def node(self, inner: Node, context: StageContext) -> Node:
        return RepeatPointNode(inner, self.n)

    def transform(self, context: StageContext, epoch: int) -> Transform:
        return lambda window, datapoints: [*map(duplicate, datapoints * (self.n - 1)), *datapoints]


class RepeatPointNode(InnerNode):
    def __init__(self, inner: Node, n: int) -> None:
        super().__init__(inner)
        self.n = n
        self.size = None if inner.size is None else inner.size * n

    def read(self, epoch: int, positions: Positions) -> Block:
        wanted, which = np.unique(as_array(positions) // self.n, return_inverse=True)
        block = self.inner.read(epoch, wanted)
        if isinstance(block, Columns):
            return take(block, which)
        return [duplicate(block[index]) for index in which.tolist()]

    def get(self, epoch: int, position: int) -> Datapoint:
        source = position // self.n
        last = self._last
        if last is None or last[:2] != (epoch, source):
            last = self._last = epoch, source, self.inner.get(epoch, source)
        return duplicate(last[2])
