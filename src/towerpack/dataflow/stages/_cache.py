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
from towerpack.dataflow._plan import InnerNode, Node, Traced
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
Cache = dict[str, tuple[int, T]]
"""Seed and cached data for each branch of a pipeline."""


class CacheData(PlannedStage):
    """Cache datapoints in memory, so that the wrapped flow runs only once.

    Every pass yields the datapoints of epoch 0 of `ds`, so random stages below draw only once. An
    indexable source is cached datapoint by datapoint, other flows when a pass reaches its end. Each
    process has its own cache. Arrays are read-only. Do not change lists and dicts in components.

    Args:
        ds: Finite flow that fits in memory.
        shuffle: Whether to shuffle each pass, as `ShuffleData` does. Without an indexable source,
            `ds` is then read to its end before the first datapoint is yielded.
        seed: Seed of the shuffle only; by default the run's seed.

    Raises:
        ConfigError: `ds` is infinite.
    """

    def __init__(self, ds: DataFlow, shuffle: bool = False, *, seed: int | None = None) -> None:
        super().__init__(ds)
        self.shuffle = shuffle
        self.seed = check_seed(seed)
        self.random = shuffle and seed is None
        if length_of(ds) == math.inf:
            what = f"CacheData must wrap a finite flow, got the infinite flow {ds}."
            raise ConfigError(what, fix="repeat the cache: RepeatedData(CacheData(ds))")
        self._by_position: Cache[dict[int, Datapoint]] = {}
        self._passes: Cache[list[Datapoint]] = {}

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
    first_pass = True

    def __init__(
        self, inner: Node, by_position: Cache[dict[int, Datapoint]], context: StageContext
    ) -> None:
        super().__init__(inner)
        self._by_position = by_position
        self._seed, self._branch = context.seed, context.branch

    def read(self, epoch: int, positions: Positions) -> Block:
        cache: dict[int, Datapoint] | None = self._last
        if cache is None:
            # Not in `__init__`: compiling a flow must not drop the cache of another seed.
            entry = self._by_position.get(self._branch)
            if entry is None or entry[0] != self._seed:
                entry = self._by_position[self._branch] = self._seed, {}
            self._last = cache = entry[1]
        missing = [position for position in as_ints(positions) if position not in cache]
        if missing:
            rows = to_rows(self.inner.read(0, np.array(missing, np.int64)))
            cache.update(zip(missing, map(_frozen, rows), strict=True))
        return [copied(cache[position]) for position in as_ints(positions)]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_by_position": {}}


class CacheStream(Stream):
    """Stream of a cached pass, or of a pass that is read now and cached if it is complete."""

    def __init__(
        self, ds: DataFlow, passes: Cache[list[Datapoint]], context: StageContext, state: State
    ) -> None:
        self._passes = passes
        self._context = context
        self._position = check_count(None if state is None else state["position"], 1 << 62)
        saved = inner_state(state)
        from_start = saved is None or self._position == 0
        self._seen: list[Datapoint] | None = [] if from_start else None
        self._inner: Stream | None = None
        self._key = context.branch + "traced" * context.traced
        seed, self._cached = passes.get(self._key, (-1, list[Datapoint]()))
        if seed != context.seed:
            self._inner = ds.open_in(context.retained_in_order(), 0, saved)
            while self._seen is not None and len(self._seen) < self._position:
                try:
                    self._seen.append(_frozen(next(self._inner)))
                except StopIteration:
                    raise ended_early(ds, len(self._seen), self._position) from None

    def __next__(self) -> Datapoint:
        if self._inner is None:
            if self._position >= len(self._cached):
                raise StopIteration
            datapoint = self._cached[self._position]
        else:
            try:
                datapoint = _frozen(next(self._inner))
            except StopIteration:
                if self._seen is not None:
                    self._passes[self._key] = self._context.seed, self._seen
                raise
            if self._seen is not None:
                self._seen.append(datapoint)
        self._position += 1
        return copied(datapoint)

    def state(self) -> State:
        # Without `inner`, a resume in a process without the cache reads up to the position.
        inner = None if self._inner is None else self._inner.state()
        return {"position": self._position, "inner": inner}

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()


def _frozen(datapoint: Datapoint) -> Datapoint:
    if isinstance(datapoint, Traced):
        return Traced(_frozen(datapoint.datapoint), datapoint.origins)
    if not is_datapoint(datapoint):
        return _read_only(datapoint)
    return rebuild(datapoint, map(_read_only, values_of(datapoint)))


def _read_only(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    view = cast("NDArray[Any]", value).view()  # a view, since the user may write to the array
    view.flags.writeable = False
    return view
