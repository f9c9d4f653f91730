from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError
from towerpack._core.randomness import derive_seed
from towerpack.dataflow._flow import DataFlow, check_seed, length_of, require_plan
from towerpack.dataflow._permutation import permute
from towerpack.dataflow._plan import InnerNode, Node
from towerpack.dataflow.arguments import integer_of
from towerpack.dataflow.datapoints import Block, Datapoint, Positions, as_array, duplicate
from towerpack.dataflow.stage_context import StageContext
from towerpack.dataflow.stages._base import PlannedStage, Transform, WindowStage
from towerpack.dataflow.stages._repeat import RepeatPointNode

Array = NDArray[np.int64]


class ShuffleData(PlannedStage):
    """Shuffle all datapoints of a pass. The order is new in each pass.

    The order is computed position by position. It needs no memory, and a resume takes no time.

    Args:
        ds: Finite flow over an indexable source.
        seed: Seed of this shuffle only; by default the run's seed. Two shuffles with the same
            `seed` over flows of one length have the same order.

    Raises:
        ConfigError: `ds` can only be read in order, or is infinite.
    """

    structural = True

    def __init__(self, ds: DataFlow, *, seed: int | None = None) -> None:
        super().__init__(ds)
        self.seed = check_seed(seed)
        self.random = seed is None
        if length_of(ds) == math.inf:
            what = f"ShuffleData must wrap a finite flow, got the infinite flow {ds}."
            raise ConfigError(what, fix="repeat the shuffle: RepeatedData(ShuffleData(ds))")
        require_plan(ds, StageContext(0, serial=True), "ShuffleData needs random access")

    def compile(self, context: StageContext) -> Node | None:
        # Workers below a shuffle cannot read ahead, so do not start them.
        return super().compile(replace(context, serial=True))

    def node(self, inner: Node, context: StageContext) -> Node:
        return ShuffleNode(inner, context.key(self, self.seed))


class LocallyShuffleData(WindowStage):
    """Shuffle the datapoints within windows of `buffer_size` datapoints.

    A resume reads at most one window again. Over an indexable source, windows keep reads close
    together on disk.

    Args:
        ds: Any flow, also an infinite one.
        buffer_size: Number of datapoints in a window.
        num_reuse: Number of times that each datapoint occurs, at random positions of its window. It
            multiplies the length and saves slow reads (an indexable source is read again).
        shuffle_interval: Ignored; accepted for programs written for Tensorpack.
        seed: Seed of this shuffle only; by default the run's seed.
    """

    structural = True
    without_effect = ("shuffle_interval",)

    def __init__(
        self,
        ds: DataFlow,
        buffer_size: int,
        num_reuse: int = 1,
        shuffle_interval: int | None = None,
        *,
        seed: int | None = None,
    ) -> None:
        super().__init__(ds)
        self.buffer_size = integer_of(buffer_size, "buffer_size", 1)
        self.num_reuse = integer_of(num_reuse, "num_reuse", 1)
        self.window_size = self.buffer_size
        self.seed = check_seed(seed)
        self.random = seed is None

    def resized(self, size: int) -> int:
        return size * self.num_reuse

    def identity(self) -> str:
        reuse = f", {self.num_reuse} times" if self.num_reuse > 1 else ""
        return f"{self.buffer_size}{reuse}"

    def node(self, inner: Node, context: StageContext) -> Node:
        repeated = inner if self.num_reuse == 1 else RepeatPointNode(inner, self.num_reuse)
        size = self.window_size * self.num_reuse
        return WindowShuffleNode(repeated, size, context.key(self, self.seed))

    def transform(self, context: StageContext, epoch: int) -> Transform:
        key, n = derive_seed(context.key(self, self.seed), epoch), self.num_reuse

        def shuffled(window: int, datapoints: list[Datapoint]) -> list[Datapoint]:
            order = shuffled_range(len(datapoints) * n, derive_seed(key, window)).tolist()
            if n == 1:
                return [datapoints[i] for i in order]
            return [duplicate(datapoints[i // n]) for i in order]

        return shuffled


class PermutedNode(InnerNode):
    """Base class of nodes that read another node in permuted order, block by block.

    A subclass defines `permuted` or `scattered`.
    """

    def __init__(self, inner: Node, key: int, block: int) -> None:
        super().__init__(inner)
        self.forwarded = (inner,)
        self.key = key
        self.block = block

    def permuted(self, epoch: int, block: int, start: int, stop: int) -> Array:
        return self.scattered(epoch, np.arange(start, stop, dtype=np.int64))

    def read(self, epoch: int, positions: Positions) -> Block:
        return self.inner.read(epoch, self.sources(epoch, positions))

    def get(self, epoch: int, position: int) -> Datapoint:
        block = position // self.block
        return self.inner.get(epoch, int(self._order(epoch, block)[position - block * self.block]))

    def sources(self, epoch: int, positions: Positions) -> Array:
        if isinstance(positions, range):
            block = positions.start // self.block
            first = block * self.block
            if positions.stop <= first + self.block:
                return self._order(epoch, block)[positions.start - first : positions.stop - first]
        elif self.size is not None and self.size <= self.block:
            return self._order(epoch, 0)[positions]
        return self.scattered(epoch, as_array(positions))

    def scattered(self, epoch: int, positions: Array) -> Array:
        result = np.empty_like(positions)
        blocks = positions // self.block
        for block in np.unique(blocks).tolist():
            inside = blocks == block
            result[inside] = self._order(epoch, block)[positions[inside] - block * self.block]
        return result

    def _order(self, epoch: int, block: int) -> Array:
        last = self._last
        if last is not None and last[0] == block and last[1] == epoch:
            return last[2]
        self._last = last = None  # frees the memory first
        stop = (block + 1) * self.block
        stop = stop if self.size is None else min(stop, self.size)
        order = self.permuted(epoch, block, block * self.block, stop)
        self._last = block, epoch, order
        return order


class ShuffleNode(PermutedNode):
    """Node that reads another node in permuted order, computed for 65,536 positions at a time."""

    def __init__(self, inner: Node, key: int) -> None:
        super().__init__(inner, key, 1 << 16)

    def scattered(self, epoch: int, positions: Array) -> Array:
        return permute(positions, self.size or 1, derive_seed(self.key, epoch))


class WindowShuffleNode(PermutedNode):
    def __init__(self, inner: Node, window_size: int, key: int) -> None:
        super().__init__(inner, key, window_size)

    def permuted(self, epoch: int, block: int, start: int, stop: int) -> Array:
        key = derive_seed(derive_seed(self.key, epoch), block)
        return shuffled_range(stop - start, key) + start


def shuffled_range(size: int, key: int) -> Array:
    return permute(np.arange(size, dtype=np.int64), size, key)
