from __future__ import annotations

from copy import copy
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError
from towerpack.dataflow._compile import Wrapper
from towerpack.dataflow._flow import DataFlow
from towerpack.dataflow._iteration_state import State, Stream
from towerpack.dataflow._plan import InnerNode, Node
from towerpack.dataflow.arguments import check_choice, integer_of
from towerpack.dataflow.datapoints import Block, Datapoint, Positions, as_array
from towerpack.dataflow.stage_context import StageContext
from towerpack.dataflow.stages._base import Transform, WindowStage
from towerpack.dataflow.stages._batch import BatchData

Tail = Literal["drop", "pad", "uneven"]


class ShardData(WindowStage):
    """Select every `num_shards`-th datapoint, starting at `index`, for one of several hosts.

    All hosts need the same seed (`iterate(seed=...)`); otherwise shards overlap. Over an indexable
    source, a host reads its own shard only. Hosts with `BatchData(ShardData(ds, H, h), b)` together
    read the batches of `BatchData(ds, H * b)`. Apply random maps before the shard, as in
    `ShardData(MapData(ds, f), …)`. Applied after it, they draw equal numbers on all hosts.

    The state of one host fits all hosts. If the number of hosts may change, use `ShardRows`.

    Args:
        ds: Flow to divide.
        num_shards: Number of shards.
        index: Index of this shard, from 0.
        tail: What to do with a last group of fewer than `num_shards` datapoints: "drop" it, "pad"
            it with copies, or yield an "uneven" number: one more in the first shards.

    Raises:
        ConfigError: An argument is invalid.
    """

    structural = True
    reads_again = False

    def __init__(self, ds: DataFlow, num_shards: int, index: int, *, tail: Tail = "drop") -> None:
        super().__init__(ds)
        self.num_shards, self.index = _checked_shard(num_shards, index)
        check_choice(tail, "tail", get_args(Tail))
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
        # Without the index, since all hosts continue from the checkpoint of one host.
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
        # The datapoints of a last, incomplete group are repeated in turn.
        return first + self._index % np.minimum(self._num_shards, self.inner.size - first)


class ShardRows(Wrapper):
    """Select the rows of one host from each global batch.

    A state can be restored with any number of hosts. All hosts need the same seed
    (`iterate(seed=...)`). Over an indexable source, a host reads its own rows only. Put random maps
    below the batch: above it, all hosts draw the same numbers.

    Args:
        ds: `BatchData` without `remainder`, whose batch size is a multiple of `num_shards`.
        num_shards: Number of hosts.
        index: Index of this host, from 0. It gets rows `index * b` to `(index + 1) * b - 1` of each
            batch, where b is the batch size divided by `num_shards`.

    Raises:
        ConfigError: `ds` is not such a `BatchData`, or an argument is invalid.
    """

    transparent = True
    structural = True

    def __init__(self, ds: DataFlow, num_shards: int, index: int) -> None:
        super().__init__(ds)
        self.num_shards, self.index = _checked_shard(num_shards, index)
        if not isinstance(ds, BatchData):
            raise ConfigError(
                f"ShardRows must wrap a BatchData, got a {type(ds).__name__}.",
                fix="wrap a BatchData directly, or use ShardData",
            )
        if ds.remainder or ds.batch_size % num_shards:
            raise ConfigError(
                f"The batches of {ds} cannot be divided evenly among {num_shards} hosts.",
                expected=f"a batch size that is a multiple of {num_shards}, without remainder",
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
        raise ConfigError(f"index must be in 0..{num_shards - 1}, got {index}.")
    return num_shards, index
