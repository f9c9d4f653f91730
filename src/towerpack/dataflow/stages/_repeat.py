"""Passes one after another, passes of a chosen length, and datapoints several times in a row."""

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
    """`n` passes over `ds` one after another, each with its own epoch; -1 is for ever.

    Pass k of epoch e is epoch e * n + k of `ds`; with n = -1 it is epoch k.

    Contract: in order; `n * len(ds)`, or infinite; not random, but random stages in `ds` differ
    from pass to pass; thread-, fork-safe and resumable as `ds` is.

    Raises:
        DataFlowError: A pass to be repeated for ever has no datapoints; raised while iterating.
    """

    structural = True

    def __init__(self, ds: DataFlow, n: int = -1) -> None:
        super().__init__(ds)
        self.n = integer_of(n, "n")
        if self.n != -1 and self.n < 1:
            raise ConfigError(f"Nothing can be repeated {n} times.", expected="-1, or 1 or more")
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
    """Passes of exactly `size` datapoints, whatever the length of `ds`.

    With `keep_state`, a pass goes on where the one before stopped: pass e holds datapoints
    e * size to (e + 1) * size - 1 of endlessly repeated passes over `ds`. Without, every pass
    begins with a new pass over `ds`.

    Contract: in order; `size`; not random; thread- and fork-safe as `ds` is; resumable as `ds` is.
    A pass that is started afresh in the middle of a `ds` without a plan reads up to there.

    Raises:
        DataFlowError: `ds` is empty; raised while iterating.
    """

    def __init__(self, ds: DataFlow, size: int, keep_state: bool = True) -> None:
        super().__init__(ds)
        self.size = integer_of(size, "size", 1)
        self.keep_state = keep_state
        self.begin = partial(_begin_fixed, self.size, keep_state)
        # Unread rest of the last pass of each seed and branch: the next pass continues there.
        self._waiting: dict[tuple[int, str, bool], Waiting] = {}

    def length(self) -> Length:
        return self.size

    def identity(self) -> str:
        return str(self.size) if self.keep_state else f"{self.size}, afresh"

    def node(self, inner: Node, context: StageContext) -> Node:
        if inner.size == 0:
            raise empty_error(self.ds)
        return PassesNode(inner, self.size, self.begin)

    def open(self, context: StageContext, epoch: int, state: State) -> Stream:
        return FixedStream(self, self._waiting, context, epoch, state)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_waiting": {}}


class Beginning(NamedTuple):
    """Where a pass begins: after `skip` datapoints of epochs `first`, `first + step`, ..."""

    first: int
    step: int = 1
    skip: int = 0


Begin = Callable[[int], Beginning]
"""Where the pass of an epoch begins. Pickles without the flow: workers have no use for that."""


def _begin_repeated(n: int, epoch: int) -> Beginning:
    return Beginning(0 if n == -1 else epoch * n)


def _begin_fixed(size: int, keep_state: bool, epoch: int) -> Beginning:
    if not keep_state:
        return Beginning(epoch, AGAIN)
    again, number = divmod(epoch, AGAIN)
    return Beginning(again * AGAIN, 1, number * size)


class PassesNode(InnerNode):
    """Read passes of another plan, one after another, as one long pass."""

    def __init__(self, inner: Node, size: int | None, begin: Begin) -> None:
        super().__init__(inner)
        self.forwarded = (inner,)
        self.size = size
        if inner.size is not None:  # not ahead over many short passes
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
        return read_groups(turns, rests, lambda turn, at: inner.read(first + turn * step, at))


class PassesStream(InnerStream):
    """Open `n` passes (-1: for ever) in turn; stay at an end until asked for more."""

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
        self._given = 0  # of this pass, unless it was begun in the middle
        self._whole = state is None
        self._told = False

    def __next__(self) -> Datapoint:
        while True:
            try:
                datapoint = next(self._inner)
            except StopIteration:
                if self._empty and self._n == -1:
                    raise empty_error(self._ds) from None
                if self._whole and not self._told:
                    self._told = tell_if_short(self._ds, self._given)
                self._given, self._whole = 0, True
                if self._turn + 1 == self._n:
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

    def _open(self, state: State) -> Stream:
        epoch = self._begin.first + self._turn * self._begin.step
        return self._ds.open_in(self._context, epoch, state)


class Waiting(NamedTuple):
    """A stream that stands where a pass ended, for the next one, and what it counts in."""

    epoch: int
    passes: PassesStream
    tally: Tally


class FixedStream(Stream):
    def __init__(
        self,
        flow: FixedSizeData,
        waiting: dict[tuple[int, str, bool], Waiting],
        context: StageContext,
        epoch: int,
        state: State,
    ) -> None:
        self._flow = flow
        self._waiting = waiting
        self._context = context
        self._epoch = epoch
        self._end: State = None
        # The stream may go over to the next pass, whose tally is another one.
        self._total = context.tally or Tally()
        self._counted = self._done = self._skip = 0
        left = (
            waiting.pop((context.seed, context.branch, context.kept), None)
            if state is None
            else None
        )
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
            left = Waiting(self._epoch + 1, self._passes, self._tally)
            context = self._context
            self._waiting[context.seed, context.branch, context.kept] = left
        else:
            self._passes.close()
        raise StopIteration

    def state(self) -> State:
        if self._end is not None:
            return self._end
        return {"done": self._done, "skip": self._skip, "inner": self._passes.state()}

    def close(self) -> None:
        if self._end is None:  # otherwise it belongs to the next pass
            self._passes.close()

    def _count(self) -> None:
        self._total.skipped += self._tally.skipped - self._counted
        self._counted = self._tally.skipped


def empty_error(ds: DataFlow) -> DataFlowError:
    return DataFlowError(
        "A pass that is to be repeated for ever has no datapoints.",
        got=f"nothing from {pipeline_of(ds)}",
        fix="check its source; a BatchData that is larger than a pass drops all of it",
    )


def tell_if_short(ds: DataFlow, datapoints: int) -> bool:
    length = length_of(ds)
    if length is None or datapoints >= length:
        return False
    message = "Its len() is %d, but a pass over it ended after %d datapoints. Correct it. (%s)"
    log.warning(message, length, datapoints, pipeline_of(ds))
    return True


class RepeatedDataPoint(WindowStage):
    """Give every datapoint `n` times before the next one.

    What stands below runs once for all of them, and their arrays are their own. So
    `MapData(RepeatedDataPoint(MapData(ds, decode), 4), augment, rng=True)` decodes a picture once
    for four augmented ones.

    Contract: in order; `n * len(ds)`; not random; thread- and fork-safe as `ds` is; resumable as
    `ds` is, reading one datapoint again.
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
