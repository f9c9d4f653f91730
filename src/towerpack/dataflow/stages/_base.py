from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace

from towerpack.dataflow._compile import Wrapper
from towerpack.dataflow._flow import length_of
from towerpack.dataflow._iteration_state import (
    InnerStream,
    State,
    Stream,
    Tally,
    check_count,
    inner_state,
    with_skipped,
)
from towerpack.dataflow._plan import Node
from towerpack.dataflow.datapoints import Datapoint
from towerpack.dataflow.pipeline_names import Length
from towerpack.dataflow.stage_context import StageContext

Transform = Callable[[int, list[Datapoint]], list[Datapoint]]
"""Function from the index of a window and its datapoints to output datapoints."""


class PlannedStage(Wrapper):
    """Base class of stages that have a plan if the wrapped flow has one."""

    @abstractmethod
    def node(self, inner: Node, context: StageContext) -> Node: ...

    def resized(self, size: int) -> int:
        return size

    def length(self) -> Length:
        length = length_of(self.ds)
        return self.resized(length) if isinstance(length, int) else length

    def compile(self, context: StageContext) -> Node | None:
        inner = self.ds.compile_in(context)
        return None if inner is None else self.node(inner, context)


class WindowStage(PlannedStage):
    """Base class of stages that read and transform windows of consecutive datapoints."""

    window_size: int  # the last window may be smaller
    reads_again: bool = True  # a window has several outputs, so that a resume may read it again

    @abstractmethod
    def transform(self, context: StageContext, epoch: int) -> Transform: ...

    def open(self, context: StageContext, epoch: int, state: State) -> Stream:
        again = self.reads_again
        below = context.retained_in_order() if again else replace(context, retained=True)
        inner = self.ds.open_in(below, epoch, inner_state(state))
        transform = self.transform(context, epoch)
        return WindowStream(inner, self.window_size, transform, state, context.tally)


class WindowStream(InnerStream):
    """Stream of transformed windows. A resumed stream reads the current window again."""

    def __init__(
        self, inner: Stream, size: int, transform: Transform, state: State, tally: Tally | None
    ) -> None:
        self._inner = inner
        self._tally = tally or Tally()
        self._size = size
        self._transform = transform
        self._window, self._used = (0, 0) if state is None else (state["window"], state["used"])
        self._begin = inner.state()
        self._skipped = 0  # in this window
        # Uncounted only when the window is read again, which may never happen.
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

    def _forward(self) -> None:
        self._begin = self._inner.state()
        self._skipped = 0
        self._window += 1
        self._used = 0
        self._ready = None

    def _fill(self) -> list[Datapoint]:
        pending, ended = self._pending, False  # retained if `inner` raises
        if self._resumed is not None:
            self._tally.uncount(self._resumed)
            self._resumed, self._skipped = None, 0
        before = self._tally.skipped  # other branches of the pipeline count here too
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
