"""Datapoints kept in memory."""

from __future__ import annotations

import math
import sys
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError
from towerpack._core.randomness import derive_seed
from towerpack.dataflow._flow import DataFlow, check_seed, length_of
from towerpack.dataflow._iteration_state import State, Stream, check_count, ended_early, inner_state
from towerpack.dataflow._plan import InnerNode, Node
from towerpack.dataflow.datapoints import (
    Block,
    Datapoint,
    Positions,
    as_ints,
    copied,
    is_datapoint,
    rebuild,
    to_rows,
    values_of,
)
from towerpack.dataflow.stage_context import StageContext
from towerpack.dataflow.stages._base import PlannedStage, WindowStream
from towerpack.dataflow.stages._shuffle import ShuffleNode, shuffled_range

T = TypeVar("T")
Kept = dict[str, tuple[int, T]]


class CacheData(PlannedStage):
    """Keep datapoints in memory, so that what is below runs once.

    Every pass gives what epoch 0 of `ds` gives: random stages below are frozen. Over an indexable
    source each datapoint is kept when it is first read, otherwise a pass when it has been read to
    its end. Arrays are handed out read-only; do not change lists or dicts in components.

    Contract: in order, or exactly shuffled; length of `ds`; random if shuffled; thread-safe, and
    each process has its own; resumable as `ds` is.

    Args:
        ds: Finite, and small enough for memory.
        shuffle: Give every pass another order, as `ShuffleData` does. A `ds` that can only be read
            in order is then read to its end before the first datapoint comes out.
        seed: For the shuffle alone; by default the run's.

    Raises:
        ConfigError: `ds` is infinite.
    """

    def __init__(self, ds: DataFlow, shuffle: bool = False, *, seed: int | None = None) -> None:
        super().__init__(ds)
        self.shuffle = shuffle
        self.seed = check_seed(seed)
        self.random = shuffle and seed is None
        if length_of(ds) == math.inf:
            raise ConfigError(f"{ds} is infinite.", fix="cache first and repeat afterwards")
        # For each place in a pipeline the last seed, and what is kept for it.
        self._by_position: Kept[dict[int, Datapoint]] = {}
        self._passes: Kept[list[Datapoint]] = {}

    def identity(self) -> str:
        return "shuffled" if self.shuffle else ""

    def node(self, inner: Node, context: StageContext) -> Node:
        node = CacheNode(inner, self._by_position, context)
        return ShuffleNode(node, context.key(self, self.seed)) if self.shuffle else node

    def open(self, context: StageContext, epoch: int, state: State) -> Stream:
        if not self.shuffle:
            return CacheStream(self.ds, self._passes, context, state)
        key = derive_seed(context.key(self, self.seed), epoch)

        def shuffled(window: int, datapoints: list[Datapoint]) -> list[Datapoint]:
            return [datapoints[i] for i in shuffled_range(len(datapoints), key).tolist()]

        # The whole pass is one window.
        inner = CacheStream(self.ds, self._passes, context, inner_state(state))
        return WindowStream(inner, sys.maxsize, shuffled, state, context.tally)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_by_position": {}, "_passes": {}}


class CacheNode(InnerNode):
    """Read another plan's epoch 0, each position once; add to what the flow keeps."""

    def __init__(
        self, inner: Node, by_position: Kept[dict[int, Datapoint]], context: StageContext
    ) -> None:
        super().__init__(inner)
        self._by_position = by_position
        self._seed, self._branch = context.seed, context.branch

    def read(self, epoch: int, positions: Positions) -> Block:
        cache: dict[int, Datapoint] | None = self._last
        if cache is None:
            # Not when the node is made: to compile a flow must not make it forget another seed.
            found = self._by_position.get(self._branch)
            if found is None or found[0] != self._seed:
                found = self._by_position[self._branch] = self._seed, {}
            self._last = cache = found[1]
        wanted = as_ints(positions)
        missing = [position for position in wanted if position not in cache]
        if missing:
            rows = to_rows(self.inner.read(0, np.array(missing, np.int64)))
            cache.update(zip(missing, map(_frozen, rows), strict=True))
        return [copied(cache[position]) for position in wanted]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_by_position": {}}


class CacheStream(Stream):
    """Give the pass that is kept, or read one, and keep it if it was read from its beginning."""

    def __init__(
        self, ds: DataFlow, passes: Kept[list[Datapoint]], context: StageContext, state: State
    ) -> None:
        self._passes = passes
        self._context = context
        self._position = check_count(None if state is None else state["position"], 1 << 62)
        saved = inner_state(state)
        from_start = saved is None or self._position == 0
        self._seen: list[Datapoint] | None = [] if from_start else None
        self._inner: Stream | None = None
        found = passes.get(context.branch)
        self._kept = [] if found is None else found[1]
        if found is None or found[0] != context.seed:
            self._inner = ds.open_in(context.kept_in_order(), 0, saved)
            while self._seen is not None and len(self._seen) < self._position:
                try:
                    self._seen.append(_frozen(next(self._inner)))
                except StopIteration:
                    raise ended_early(ds, len(self._seen), self._position) from None

    def __next__(self) -> Datapoint:
        if self._inner is None:
            if self._position >= len(self._kept):
                raise StopIteration
            datapoint = self._kept[self._position]
        else:
            try:
                datapoint = _frozen(next(self._inner))
            except StopIteration:
                if self._seen is not None:
                    self._passes[self._context.branch] = self._context.seed, self._seen
                raise
            if self._seen is not None:
                self._seen.append(datapoint)
        self._position += 1
        return copied(datapoint)

    def state(self) -> State:
        # Without `inner`, a resume in a process that has no cache reads up to the position.
        inner = None if self._inner is None else self._inner.state()
        return {"position": self._position, "inner": inner}

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()


def _frozen(datapoint: Datapoint) -> Datapoint:
    if not is_datapoint(datapoint):
        return _read_only(datapoint)
    return rebuild(datapoint, map(_read_only, values_of(datapoint)))


def _read_only(value: Any) -> Any:
    """A view: the array may be the user's, who may go on writing to it."""
    if not isinstance(value, np.ndarray):
        return value
    view = cast("NDArray[Any]", value).view()
    view.flags.writeable = False
    return view
