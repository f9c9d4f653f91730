"""Batches of datapoints of similar length."""

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
    """Pad datapoints of similar length into batches ("bucketing").

    `boundaries=[10, 20]` makes three buckets: lengths up to 10, from 11 to 20, and longer. A batch
    is handed on as soon as its bucket is full; what is left in them at the end of a pass follows in
    smaller batches.

    With `lengths`, those of all datapoints of an indexable `ds`, the number of batches is known,
    any of them can be read alone, and a resume reads nothing again. The order of a pass then takes
    8 bytes of memory per datapoint.

    Contract: batches in the order in which they fill up, within each the order of `ds` or that of
    the shuffle; length known with `lengths`; random with `shuffle`; thread- and fork-safe as `ds`
    is; resumable at once with `lengths`, otherwise as `BatchDataByShape`.

    Args:
        batch_size: Datapoints in a batch, for all buckets or for each.
        boundaries: The greatest lengths of the buckets, ascending; one more bucket takes the rest.
        max_tokens: Instead of `batch_size`: each bucket gets as many datapoints as make this many
            tokens when padded to its boundary; none may be longer than the last.
        length: The component whose first axis tells, or a function from a datapoint to its length.
        lengths: The length of each datapoint of `ds`, in its order.
        shuffle: Put datapoints with `lengths` in a random order first. (A `ShuffleData` below would
            give them in another order than `lengths`, which is noticed.)
        seed: For this shuffle alone; by default the run's.
        pad: A value, or one for each component that may be ragged, as for `BatchData`.
        pad_to_boundary: Pad to the bucket's boundary rather than to the longest of the batch, so
            that there are few shapes to compile for: along the first axis of components that `pad`
            applies to and that are as long as the datapoint.
        remainder: Yield smaller batches at the end.

    Raises:
        BatchError: Datapoints do not stack; raised while iterating.
        DataFlowError: `lengths` is not true, or a datapoint is too long; raised while iterating.
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
            group_of=self.buckets.of_one,
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
            raise ConfigError("shuffle=True needs lengths=...; or shuffle below: ShuffleData(ds)")

    def length(self) -> Length:
        if self.lengths is None:
            return None
        counts = np.bincount(self.buckets.of(self.lengths), minlength=len(self.buckets.sizes))
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
                "lengths= does not fit the datapoints.",
                got=f"{known.dtype} {list(known.shape)} for {self.ds}",
                expected="an integer for each datapoint of a flow of known length",
            )
        require_plan(self.ds, StageContext(0, serial=True), "lengths= need random access")
        known = known.astype(np.int64)
        self.buckets.of_one(int(known.max(initial=0)))
        return known


class Buckets:
    """Which lengths go together, and how many datapoints make a batch of them."""

    def __init__(
        self,
        boundaries: Sequence[int],
        batch_size: int | Sequence[int] | None,
        max_tokens: int | None,
    ) -> None:
        self.boundaries = [integer_of(boundary, "a boundary") for boundary in boundaries]
        self.limit: int | None = None
        if (batch_size is None) == (max_tokens is None):
            raise ConfigError("Give a batch_size, or max_tokens, and not both.")
        wanted = len(self.boundaries) + 1
        if max_tokens is None:
            sizes = batch_size if isinstance(batch_size, Iterable) else [batch_size] * wanted
            self.sizes = [integer_of(size, "batch_size") for size in sizes]
        else:
            tokens = integer_of(max_tokens, "max_tokens")
            self.limit = max(self.boundaries, default=0)
            self.sizes = [tokens // max(1, boundary) for boundary in self.boundaries] + [1]
        ascending = all(low < high for low, high in pairwise([0, *self.boundaries]))
        if not ascending or len(self.sizes) != wanted or min(self.sizes) < 1 or self.limit == 0:
            raise ConfigError(
                f"Batch sizes {self.sizes} do not fit boundaries {self.boundaries}.",
                expected=f"{wanted} sizes, each 1 or more, and boundaries ascending from 1 on; "
                "max_tokens needs boundaries, none above it",
            )

    def __str__(self) -> str:
        sizes = self.sizes if self.limit is None else self.sizes[:-1]
        shown = sizes[0] if len(set(sizes)) == 1 else sizes
        return f"{shown}, {self.boundaries}" + (", no longer" * (self.limit is not None))

    def of(self, lengths: Array) -> Array:
        return np.searchsorted(self.boundaries, lengths, side="left")

    def of_one(self, length: int) -> int:
        if self.limit is not None and length > self.limit:
            raise DataFlowError(
                f"A datapoint of length {length} is longer than the last boundary, {self.limit}.",
                fix="cut it or leave it out (MapData, FilterData), or add a boundary",
            )
        return int(np.searchsorted(self.boundaries, length, side="left"))


@dataclass
class PaddedBatch:
    """Make a batch of one bucket, padded to its width, if it has one."""

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
    key: int | None  # of the shuffle, if any
    size: int | None

    def get(self, epoch: int, position: int) -> Datapoint:
        order, starts = self._batches(epoch)
        members = order[starts[position] : starts[position + 1]]
        rows = to_rows(self.inner.read(epoch, members))
        expected = self.lengths[members].tolist()
        for row, number, length in zip(rows, members.tolist(), expected, strict=True):
            found = self.grouping.ask(row, number)
            if found != length:
                raise DataFlowError(
                    f"Datapoint {number} has length {found}.",
                    expected=f"{length}, as lengths[{number}] says",
                    fix="give lengths in the order of `ds`; shuffle=True, not a shuffled `ds`",
                )
        return self.grouping.collate(self.buckets.of_one(expected[0]), rows)

    def _batches(self, epoch: int) -> tuple[Array, Array]:
        last = self._last
        if last is not None and last[0] == epoch:
            return last[1]
        order = np.arange(len(self.lengths), dtype=np.int64)
        if self.key is not None and len(order):
            order = permute(order, len(order), derive_seed(self.key, epoch))
        sizes = np.array(self.buckets.sizes, np.int64)
        where, starts = gather(
            self.buckets.of(self.lengths[order]), sizes, remainder=self.grouping.remainder
        )
        self._last = epoch, (order[where], starts)
        return order[where], starts


def gather(groups: Array, sizes: Array, *, remainder: bool) -> tuple[Array, Array]:
    """Return positions as `GroupStream` gathers them into batches, and where each batch starts."""
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
