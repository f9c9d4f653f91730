"""Exact shuffles of whole passes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError
from towerpack._core.randomness import derive_seed
from towerpack.dataflow._blocks import Block, Positions, as_array
from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow._flow import (
    DataFlow,
    Length,
    Place,
    Wrapper,
    check_seed,
    compile_flow,
    infinite,
    length_of,
    pipeline_of,
    sequential_part,
)
from towerpack.dataflow._permute import permute
from towerpack.dataflow._plan import Node

_BLOCK = 1 << 16


class ShuffleData(Wrapper):
    """Every datapoint of a pass once, in a random order that is new in each pass.

    The order is a permutation that is computed, not stored, so passes of any length cost no memory
    and a resume costs no time. Needs random access to what it wraps.

    Contract: random order; length of `ds`; random; thread- and fork-safe as `ds` is; resumable at
    once.

    Args:
        ds: Finite, over an indexable source.
        seed: For this shuffle alone; by default the run's. Two shuffles with the same seed of their
            own, over flows of one length, give the same order wherever they stand.

    Raises:
        ConfigError: `ds` can only be read in order, or is infinite.
    """

    lifts = True

    def __init__(self, ds: DataFlow, *, seed: int | None = None) -> None:
        super().__init__(ds)
        self.seed = None if seed is None else check_seed(seed)
        self.random = seed is None
        if infinite(length_of(ds)):
            raise ConfigError(
                f"{ds} is infinite: it has no order to shuffle.",
                fix="shuffle first and repeat afterwards",
            )
        if compile_flow(ds, Place(0, serial=True)) is None:
            raise ConfigError(
                f"ShuffleData needs random access, and {pipeline_of(sequential_part(ds))} can only "
                "be read in order.",
                expected="a source with __len__ and __getitem__, and no __iter__; stages that keep "
                "to a plan",
                fix="LocallyShuffleData(ds, buffer_size), or load it: DataFromList(list(ds))",
            )

    def length(self) -> Length:
        return length_of(self.ds)

    def compile(self, place: Place) -> Node | None:
        # Nobody can read ahead of a shuffle: workers further down would only start in vain.
        inner = compile_flow(self.ds, replace(place, serial=True))
        return None if inner is None else ShuffleNode(inner, place.key(self, self.seed))


class ShuffleNode(Node):
    """Reads another plan in permuted order.

    The permutation is computed for blocks of positions, and the last block is kept: that is one
    computation per pass, or per 65,536 datapoints, instead of one per batch.
    """

    def __init__(self, inner: Node, key: int) -> None:
        self.inner = inner
        self.passes_on = (inner,)
        self.size = inner.size
        self.chunk = inner.chunk
        self._key = key
        self._last: tuple[int, int, NDArray[np.int64]] | None = None

    def read(self, epoch: int, positions: Positions) -> Block:
        return self.inner.read(epoch, self._sources(epoch, positions))

    def get(self, epoch: int, position: int) -> Datapoint:
        block = position // _BLOCK
        order = self._order(epoch, block)
        return self.inner.get(epoch, int(order[position - block * _BLOCK]))

    def _sources(self, epoch: int, positions: Positions) -> NDArray[np.int64]:
        if isinstance(positions, range):
            block = positions.start // _BLOCK
            if positions.stop <= (block + 1) * _BLOCK:
                first = block * _BLOCK
                return self._order(epoch, block)[positions.start - first : positions.stop - first]
        elif self.size is not None and self.size <= _BLOCK:
            return self._order(epoch, 0)[positions]
        return permute(as_array(positions), self.size or 1, derive_seed(self._key, epoch))

    def _order(self, epoch: int, block: int) -> NDArray[np.int64]:
        last = self._last
        if last is not None and last[0] == block and last[1] == epoch:
            return last[2]
        self._last = last = None  # only now is the next one made
        size = self.size or 1
        positions = np.arange(block * _BLOCK, min((block + 1) * _BLOCK, size), dtype=np.int64)
        order = permute(positions, size, derive_seed(self._key, epoch))
        self._last = (block, epoch, order)  # one assignment: safe between threads
        return order

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None}
