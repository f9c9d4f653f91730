from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from towerpack._core.errors import ConfigError, DataFlowError
from towerpack._core.randomness import derive_seed
from towerpack.dataflow._compile import Wrapper
from towerpack.dataflow._flow import DataFlow, check_seed, length_of, require_plan
from towerpack.dataflow._iteration_state import State, Stream
from towerpack.dataflow._permutation import permute
from towerpack.dataflow._plan import Node
from towerpack.dataflow._stacking import Pad, pad_value, stack_rows
from towerpack.dataflow.arguments import integer_of
from towerpack.dataflow.datapoints import Datapoint, keys_of, replaced, to_rows, values_of
from towerpack.dataflow.pipeline_names import Length
from towerpack.dataflow.stage_context import StageContext
from towerpack.dataflow.stages._batch_by_shape import Grouping, GroupStream

Array = NDArray[np.int64]


class BatchByLength(Wrapper):
    """Group datapoints of similar length into padded batches ("bucketing").

    `boundaries=[10, 20]` defines three buckets: lengths up to 10, from 11 to 20, and above 20. A
    batch is yielded when its bucket is full. Incomplete buckets follow at the end of a pass.

    If `lengths` is passed for an indexable `ds`, the number of batches is known, batches can be
    read in any order, and a resume reads nothing again. The order of a pass then takes 8 bytes of
    memory per datapoint. Otherwise a resume works as for `BatchDataByShape`.

    Args:
        ds: Flow of tuples, lists or dicts.
        batch_size: Number of datapoints in a batch: one for all buckets, or one for each.
        boundaries: Greatest length of each bucket, ascending. Another bucket takes longer ones.
        max_tokens: Limit of tokens in a padded batch, instead of `batch_size`. No datapoint may be
            longer than the last boundary.
        length: Component whose first axis is the length, or a function that returns the length of a
            datapoint.
        lengths: Lengths of all datapoints of `ds`, of shape [len(ds)].
        shuffle: Whether to shuffle before grouping; needs `lengths`. Do not use a `ShuffleData`
            below, which would give another order than `lengths`.
        seed: Seed of this shuffle only; by default the run's seed.
        pad: Padding value, or a dict of values by component, as for `BatchData`.
        pad_to_boundary: Whether to pad to the boundary instead of the longest datapoint, so that
            few shapes need compiling. Applies to the first axis of padded components.
        remainder: Whether to yield incomplete batches at the end.

    Raises:
        ConfigError: Arguments are invalid or contradict each other.
        BatchError: Datapoints do not stack; raised while iterating.
        DataFlowError: `lengths` is wrong, or a datapoint is too long; raised while iterating.
    """

    makes_batches = True
    structural = True

    def __init__(
        self,
        ds: DataFlow,
        batch_size: int | Sequence[int] | None = None,
        boundaries: Sequence[int] = (),
        *,
        max_tokens: int | None = None,
        length: Hashable | Callable[[Datapoint], int] = 0,
        lengths: ArrayLike | None = None,
        shuffle: bool = False,
        seed: int | None = None,
        pad: float | Mapping[Hashable, float] = 0,
        pad_to_boundary: bool = False,
        remainder: bool = True,
    ) -> None:
        super().__init__(ds)
        self.buckets = Buckets(boundaries, batch_size, max_tokens)

        def length_of(datapoint: Datapoint) -> int:
            if callable(length):
                return int(cast("Any", length(datapoint)))
            return len(datapoint[length])

        self._grouping = Grouping(
            f"{type(self).__name__}({self.buckets})",
            property_of=length_of,
            group_of=self.buckets.index_of,
            full_size=self.buckets.sizes.__getitem__,
            collate=PaddedBatch(length_of, pad, self.buckets.boundaries if pad_to_boundary else []),
            remainder=remainder,
        )
        self.remainder = remainder
        self.shuffle = shuffle
        self.seed = check_seed(seed)
        self.random = shuffle and seed is None
        self.lengths = None if lengths is None else self._checked(lengths)
        if shuffle and lengths is None:
            raise ConfigError(
                "shuffle=True requires lengths=.",
                fix="pass lengths=, or wrap ds in ShuffleData(ds)",
            )

    def length(self) -> Length:
        if self.lengths is None:
            return None
        counts = np.bincount(self.buckets.indices(self.lengths), minlength=len(self.buckets.sizes))
        sizes = np.array(self.buckets.sizes)
        return int(((counts + (sizes - 1) * self.remainder) // sizes).sum())

    def arguments(self) -> str:
        return str(self.buckets)

    def identity(self) -> str:
        known = ", known" * (self.lengths is not None) + ", shuffled" * self.shuffle
        return f"{self.buckets}{known}{', whole' * (not self.remainder)}"

    def compile(self, context: StageContext) -> Node | None:
        inner = None if self.lengths is None else self.ds.compile_in(context)
        if inner is None or self.lengths is None:
            return None
        key = context.key(self, self.seed) if self.shuffle else None
        return BucketNode(inner, self._grouping, self.buckets, self.lengths, key, len(self))

    def open(self, context: StageContext, epoch: int, state: State) -> Stream:
        return GroupStream(self.ds, context, epoch, state, self._grouping)

    def _checked(self, lengths: ArrayLike) -> Array:
        known = np.asarray(lengths)
        numbers = known.dtype.kind in "iu" or known.size == 0
        if known.ndim != 1 or not numbers or len(known) != length_of(self.ds):
            raise ConfigError(
                "lengths= must contain an integer for each datapoint of a flow of known length.",
                got=f"{known.dtype} {list(known.shape)} for {self.ds}",
            )
        require_plan(self.ds, StageContext(0, serial=True), "lengths= needs random access")
        known = known.astype(np.int64)
        self.buckets.index_of(int(known.max(initial=0)))
        return known


class Buckets:
    def __init__(
        self,
        boundaries: Sequence[int],
        batch_size: int | Sequence[int] | None,
        max_tokens: int | None,
    ) -> None:
        self.boundaries = [integer_of(boundary, "a boundary") for boundary in boundaries]
        self.limit: int | None = None
        if (batch_size is None) == (max_tokens is None):
            raise ConfigError("BatchByLength needs exactly one of batch_size and max_tokens.")
        count = len(self.boundaries) + 1
        if max_tokens is None:
            sizes = batch_size if isinstance(batch_size, Iterable) else [batch_size] * count
            self.sizes = [integer_of(size, "batch_size") for size in sizes]
        else:
            tokens = integer_of(max_tokens, "max_tokens")
            self.limit = max(self.boundaries, default=0)
            self.sizes = [tokens // max(1, boundary) for boundary in self.boundaries] + [1]
        ascending = all(low < high for low, high in pairwise([0, *self.boundaries]))
        if not ascending or len(self.sizes) != count or min(self.sizes) < 1 or self.limit == 0:
            raise ConfigError(
                f"Batch sizes {self.sizes} do not fit boundaries {self.boundaries}.",
                expected=f"{count} sizes of at least 1, and ascending boundaries of at least 1; "
                "with max_tokens, boundaries of at most max_tokens",
            )

    def __str__(self) -> str:
        sizes = self.sizes if self.limit is None else self.sizes[:-1]
        shown = sizes[0] if len(set(sizes)) == 1 else sizes
        return f"{shown}, {self.boundaries}" + (", no longer" * (self.limit is not None))

    def indices(self, lengths: Array) -> Array:
        return np.searchsorted(self.boundaries, lengths, side="left")

    def index_of(self, length: int) -> int:
        if self.limit is not None and length > self.limit:
            raise DataFlowError(
                f"A datapoint of length {length} is longer than the last boundary, {self.limit}.",
                fix="cut or drop long datapoints with MapData or FilterData, or add a boundary",
            )
        return int(np.searchsorted(self.boundaries, length, side="left"))


@dataclass
class PaddedBatch:
    length_of: Callable[[Datapoint], int]
    pad: Pad
    widths: list[int]

    def __call__(self, bucket: int, datapoints: list[Datapoint]) -> Datapoint:
        batch = stack_rows(datapoints, self.pad)
        if bucket >= len(self.widths):
            return batch
        longest, width = max(map(self.length_of, datapoints)), self.widths[bucket]
        changed: dict[Hashable, NDArray[Any]] = {}
        for key, column in zip(keys_of(batch), values_of(batch), strict=True):
            pad: Any = pad_value(self.pad, key)
            if pad is not None and column.ndim > 1 and column.shape[1] == longest:
                axes = [(0, 0), (0, width - longest)] + [(0, 0)] * (column.ndim - 2)
                changed[key] = np.pad(column, axes, constant_values=pad)
        return replaced(batch, changed)


@dataclass(eq=False)
class BucketNode(Node):
    inner: Node
    grouping: Grouping
    buckets: Buckets
    lengths: Array
    key: int | None  # random key of the shuffle, if any
    size: int | None

    def members(self, epoch: int, position: int) -> Array:
        order, starts = self._batches(epoch)
        return order[starts[position] : starts[position + 1]]

    def get(self, epoch: int, position: int) -> Datapoint:
        members = self.members(epoch, position)
        rows = to_rows(self.inner.read(epoch, members))
        expected = self.lengths[members].tolist()
        for row, number, length in zip(rows, members.tolist(), expected, strict=True):
            actual = self.grouping.property(row, number)
            if actual != length:
                raise DataFlowError(
                    f"Datapoint {number} has length {actual}, but lengths[{number}] is {length}.",
                    fix="pass lengths in the order of ds; use shuffle=True, not a shuffled ds",
                )
        return self.grouping.collate(self.buckets.index_of(expected[0]), rows)

    def _batches(self, epoch: int) -> tuple[Array, Array]:
        last = self._last
        if last is not None and last[0] == epoch:
            return last[1]
        order = np.arange(len(self.lengths), dtype=np.int64)
        if self.key is not None and len(order):
            order = permute(order, len(order), derive_seed(self.key, epoch))
        sizes = np.array(self.buckets.sizes, np.int64)
        where, starts = gather(
            self.buckets.indices(self.lengths[order]), sizes, remainder=self.grouping.remainder
        )
        self._last = epoch, (order[where], starts)
        return order[where], starts


def gather(groups: Array, sizes: Array, *, remainder: bool) -> tuple[Array, Array]:
    """Return the positions of datapoints in the order of batches, and the starts of batches.

    Batches are in the order in which `GroupStream` yields them.
    """
    by_group = np.argsort(groups, kind="stable")
    group = groups[by_group]
    rank = np.arange(len(group)) - np.searchsorted(group, group)
    begins = rank % sizes[group] == 0
    firsts = np.flatnonzero(begins)
    counts = np.diff(firsts, append=len(group))
    full = counts == sizes[group[firsts]]
    # Full batches by their last members, then the others by their first.
    when = np.where(full, by_group[firsts + counts - 1], len(group) + by_group[firsts])
    order = np.argsort(when[np.cumsum(begins) - 1], kind="stable")
    ends = np.cumsum(counts[np.argsort(when)])[: None if remainder else int(full.sum())]
    return by_group[order], np.concatenate(([0], ends))
