"""One host's part of a flow."""

from __future__ import annotations

from copy import copy
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError
from towerpack.dataflow._compile import Wrapper
from towerpack.dataflow._flow import DataFlow
from towerpack.dataflow._iteration_state import State, Stream
from towerpack.dataflow._plan import InnerNode, Node
from towerpack.dataflow.arguments import integer_of
from towerpack.dataflow.datapoints import Block, Datapoint, Positions, as_array
from towerpack.dataflow.stage_context import StageContext
from towerpack.dataflow.stages._base import Transform, WindowStage
from towerpack.dataflow.stages._batch import BatchData

Tail = Literal["drop", "pad", "uneven"]


class ShardData(WindowStage):
    """Every `num_shards`-th datapoint, from the one at `index` on: the part of one host.

    The hosts must be given one seed (`iterate(seed=...)`), or their parts overlap. Over an
    indexable source only the host's own part is read. Hosts with `BatchData(ShardData(ds, H, h),
    b)` together read the global batches `BatchData(ds, H * b)`. Put random maps below the shard:
    above it, all hosts draw the same numbers.

    A state of one host is good for all. Where their number may change, use `ShardRows`.

    Contract: in order; a `num_shards`-th of `ds`; not random; thread- and fork-safe as `ds` is;
    resumable as `ds` is, reading at most `num_shards` datapoints again.

    Args:
        num_shards, index: How many parts, and which one, from 0.
        tail: What becomes of the last datapoints if they are not enough for all parts: "drop" them;
            "pad" repeats them in turn until they are; "uneven" makes the first parts longer by one.
    """

    structural = True
    reads_again = False

    def __init__(self, ds: DataFlow, num_shards: int, index: int, *, tail: Tail = "drop") -> None:
        super().__init__(ds)
        self.num_shards, self.index = _checked_shard(num_shards, index)
        if tail not in ("drop", "pad", "uneven"):
            raise ConfigError(f"There is no tail={tail!r}.", expected='"drop", "pad" or "uneven"')
        self.window_size = self.num_shards
        self.shard = self.num_shards > 1
        self.tail: Tail = tail

    def resized(self, size: int) -> int:
        last = self.num_shards - 1
        missing = {"drop": 0, "pad": last, "uneven": last - self.index}[self.tail]
        return (size + missing) // self.num_shards

    def arguments(self) -> str:
        return f"{self.index} of {self.num_shards}"

    def identity(self) -> str:
        # Without the index: one host writes the checkpoint that all continue from.
        return str(self.num_shards) if self.tail == "drop" else f"{self.num_shards}, {self.tail}"

    def node(self, inner: Node, context: StageContext) -> Node:
        size = None if inner.size is None else self.resized(inner.size)
        return ShardNode(inner, self.num_shards, self.index, size)

    def transform(self, context: StageContext, epoch: int) -> Transform:
        def part(window: int, datapoints: list[Datapoint]) -> list[Datapoint]:
            if len(datapoints) < self.num_shards and self.tail == "drop":
                return []
            if self.tail == "pad":
                return [datapoints[self.index % len(datapoints)]]
            return datapoints[self.index : self.index + 1]

        return part


class ShardNode(InnerNode):
    def __init__(self, inner: Node, num_shards: int, index: int, size: int | None) -> None:
        super().__init__(inner)
        self.size = size
        self._num_shards = num_shards
        self._index = index

    def read(self, epoch: int, positions: Positions) -> Block:
        return self.inner.read(epoch, self._sources(as_array(positions)))

    def get(self, epoch: int, position: int) -> Datapoint:
        return self.inner.get(epoch, int(self._sources(np.array([position], np.int64))[0]))

    def _sources(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        first = positions * self._num_shards
        if self.inner.size is None:
            return first + self._index
        # In the last, incomplete group the datapoints take turns.
        return first + self._index % np.minimum(self._num_shards, self.inner.size - first)


class ShardRows(Wrapper):
    """The rows of one host of each global batch.

    A state can be restored with any number of hosts. They must be given one seed
    (`iterate(seed=...)`). Over an indexable source only the host's own rows are read. Put random
    maps below the batch: above, all hosts draw the same numbers.

    Contract: in order; length of `ds`; not random; thread-, fork-safe and resumable as `ds` is.

    Args:
        ds: A `BatchData` of the global batch size, which `num_shards` divides, without `remainder`.
        num_shards, index: How many hosts, and which one, from 0. It gets rows `index * b` to
            `(index + 1) * b` of each batch, where b is the batch size divided by `num_shards`.
    """

    transparent = True
    structural = True

    def __init__(self, ds: DataFlow, num_shards: int, index: int) -> None:
        super().__init__(ds)
        self.num_shards, self.index = _checked_shard(num_shards, index)
        if not isinstance(ds, BatchData):
            found = f"ShardRows takes batches apart, and {type(ds).__name__} is no BatchData."
            raise ConfigError(found, fix="put it directly on BatchData, or use ShardData")
        if ds.remainder or ds.batch_size % num_shards:
            raise ConfigError(
                f"{num_shards} hosts cannot share the batches of {ds} evenly.",
                expected=f"a multiple of {num_shards}, without remainder",
            )
        self.shard = num_shards > 1
        rows = ds.batch_size // num_shards
        self._part = copy(ds)
        self._part.rows = slice(index * rows, (index + 1) * rows)

    def arguments(self) -> str:
        return f"{self.index} of {self.num_shards}"

    def compile(self, context: StageContext) -> Node | None:
        return self._part.compile(context)

    def open(self, context: StageContext, epoch: int, state: State) -> Stream:
        return self._part.open(context, epoch, state)


def _checked_shard(num_shards: int, index: int) -> tuple[int, int]:
    num_shards = integer_of(num_shards, "num_shards", 1)
    index = integer_of(index, "index", 0)
    if index >= num_shards:
        raise ConfigError(f"There is no shard {index} of {num_shards}: the first is shard 0.")
    return num_shards, index
