"""Batches of datapoints of similar length."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from towerpack._core.errors import ConfigError, DataFlowError
from towerpack._core.randomness import derive_seed
from towerpack.dataflow._blocks import Block, Positions, as_ints, to_rows
from towerpack.dataflow._datapoints import Datapoint, keys_of, rebuild, values_of
from towerpack.dataflow._flow import (
    DataFlow,
    Length,
    Place,
    Wrapper,
    check_seed,
    compile_flow,
    length_of,
)
from towerpack.dataflow._permute import permute
from towerpack.dataflow._plan import Node
from towerpack.dataflow._stacking import Pad, pad_value, stack_rows
from towerpack.dataflow._stream import State, Stream
from towerpack.dataflow.stages._buckets import Buckets, gather
from towerpack.dataflow.stages._grouping import Grouping, GroupStream

Array = NDArray[np.int64]


class BatchByLength(Wrapper):
    """Pads datapoints of similar length into batches ("bucketing").

    `boundaries=[10, 20]` makes three buckets: lengths up to 10, from 11 to 20, and longer. A batch
    is handed on as soon as its bucket is full; what is left in them at the end of a pass follows in
    smaller batches.

    With `lengths`, those of all datapoints of an indexable `ds`, the batches of a pass are
    arithmetic: their number is known, any of them can be read alone, a resume reads nothing again,
    and `shuffle=True` puts the datapoints in a random order first. (A `ShuffleData` below would put
    them in another order than `lengths`, which is noticed.) The order of a pass then takes 8 bytes
    of memory per datapoint.

    Contract: batches in the order in which they fill up, within each the order of `ds` or that of
    the shuffle; length known with `lengths`; random with `shuffle`; thread- and fork-safe as `ds`
    is; resumable at once with `lengths`, otherwise as `ds` is, reading again what waits (over an
    indexable source) or all since the oldest datapoint that waits.

    Args:
        ds: Its datapoints are tuples, lists or dicts.
        batch_size: Datapoints in a batch, for all buckets or for each.
        boundaries: The greatest lengths of the buckets, ascending; one more bucket takes the rest.
        max_tokens: Instead of `batch_size`: each bucket gets as many datapoints as make this many
            tokens when padded to its boundary. A datapoint longer than the last boundary is then an
            error.
        length: The component whose first axis tells, or a function from a datapoint to its length.
        lengths: The length of each datapoint of `ds`, in its order.
        shuffle: See above.
        seed: For this shuffle alone; by default the run's.
        pad: A value, or one for each component that may be ragged, as for `BatchData`.
        pad_to_boundary: Pad to the bucket's boundary rather than to the longest of the batch, so
            that there are few shapes to compile for. It does so along the first axis of components
            that `pad` applies to and that are as long as the datapoint.
        remainder: Yield smaller batches at the end.

    Raises:
        BatchError: Datapoints do not stack; raised while iterating.
        DataFlowError: `lengths` is not true, or a datapoint is too long; raised while iterating.
    """

    makes_batches = True
    lifts = True

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
        self.by_length = ByLength(
            f"{type(self).__name__}({self.buckets})",
            self.buckets,
            length,
            pad,
            pad_to_boundary=pad_to_boundary,
            remainder=remainder,
        )
        self.remainder = remainder
        self.shuffle = shuffle
        self.seed = None if seed is None else check_seed(seed)
        self.random = shuffle and seed is None
        self.lengths = None if lengths is None else self._checked(lengths)
        if shuffle and lengths is None:
            raise ConfigError(
                "shuffle=True needs the lengths of all datapoints.",
                fix="give lengths=..., or shuffle below: ShuffleData or LocallyShuffleData",
            )

    def length(self) -> Length:
        if self.lengths is None:
            return None
        counts = np.bincount(self.buckets.of(self.lengths), minlength=len(self.buckets.sizes))
        sizes = np.array(self.buckets.sizes)
        return int(((counts + (sizes - 1) * self.remainder) // sizes).sum())

    def arguments(self) -> str:
        return str(self.buckets)

    def identity(self) -> str:
        known = "" if self.lengths is None else ", known"
        return (
            f"{self.buckets}{known}{', shuffled' * self.shuffle}{', whole' * (not self.remainder)}"
        )

    def compile(self, place: Place) -> Node | None:
        inner = compile_flow(self.ds, place) if self.lengths is not None else None
        if inner is None or self.lengths is None:
            return None
        key = place.key(self, self.seed) if self.shuffle else None
        return BucketNode(inner, self.by_length, self.lengths, key, len(self))

    def open(self, place: Place, epoch: int, state: State) -> Stream:
        return GroupStream(self.ds, place, epoch, state, self.by_length)

    def _checked(self, lengths: ArrayLike) -> Array:
        known = np.asarray(lengths)
        numbers = known.dtype.kind in "iu" or known.size == 0
        if known.ndim != 1 or not numbers or len(known) != length_of(self.ds):
            raise ConfigError(
                "lengths= does not fit the datapoints.",
                got=f"{known.dtype} {list(known.shape)} for {self.ds}",
                expected="an integer for each datapoint of a flow of known length",
            )
        if compile_flow(self.ds, Place(0, serial=True)) is None:
            raise ConfigError(
                f"{self.ds} can only be read in order: knowing lengths does not help.",
                fix="leave out lengths=",
            )
        known = known.astype(np.int64)
        self.buckets.check(int(known.max(initial=0)))
        return known


class ByLength(Grouping):
    """Groups by length.

    Args:
        name: Of the stage, for messages.
        buckets: The groups.
        length: As for `BatchByLength`.
        pad: As for `BatchByLength`.
        pad_to_boundary: As for `BatchByLength`.
        remainder: As for `BatchByLength`.
    """

    def __init__(
        self,
        name: str,
        buckets: Buckets,
        length: Hashable | Callable[[Datapoint], int],
        pad: Pad,
        *,
        pad_to_boundary: bool,
        remainder: bool,
    ) -> None:
        super().__init__(name, remainder=remainder)
        self.buckets = buckets
        self._length: Any = length
        self._pad = pad
        self._pad_to_boundary = pad_to_boundary

    def length_of(self, datapoint: Datapoint) -> int:
        """How long a datapoint is."""
        if callable(self._length):
            return int(cast("Any", self._length(datapoint)))
        return len(datapoint[self._length])

    def group_of(self, datapoint: Datapoint) -> Hashable:
        length = self.length_of(datapoint)
        self.buckets.check(length)
        return int(np.searchsorted(self.buckets.boundaries, length, side="left"))

    def full_size(self, group: Hashable) -> int:
        return self.buckets.sizes[cast("int", group)]

    def collate(self, group: Hashable, datapoints: list[Datapoint]) -> Datapoint:
        batch = stack_rows(datapoints, self._pad)
        bucket = cast("int", group)
        if not self._pad_to_boundary or bucket == len(self.buckets.boundaries):
            return batch
        longest = max(map(self.length_of, datapoints))
        columns = [
            self._widened(column, key, longest, self.buckets.boundaries[bucket])
            for key, column in zip(keys_of(batch), values_of(batch), strict=True)
        ]
        return rebuild(batch, columns)

    def _widened(self, column: NDArray[Any], key: Hashable, longest: int, width: int) -> Any:
        pad = pad_value(self._pad, key)
        if pad is None or column.ndim < 2 or column.shape[1] != longest or longest == width:
            return column
        fill = np.full((len(column), width - longest, *column.shape[2:]), pad, column.dtype)
        return np.concatenate((column, fill), axis=1)


class BucketNode(Node):
    """Reads batches of another plan, the lengths of whose datapoints are known.

    Args:
        inner: The plan.
        by_length: Makes batches.
        lengths: Of all datapoints of `inner`.
        key: Of the shuffle; `None` leaves them in order.
        size: Batches in a pass.
    """

    def __init__(
        self, inner: Node, by_length: ByLength, lengths: Array, key: int | None, size: int
    ) -> None:
        self.inner = inner
        self.size = size
        self._by_length = by_length
        self._lengths = lengths
        self._key = key
        self._last: tuple[int, Array, Array] | None = None

    def members(self, epoch: int, position: int) -> Array:
        """The positions in `inner` of one batch."""
        _, order, starts = self._batches(epoch)
        return order[starts[position] : starts[position + 1]]

    def read(self, epoch: int, positions: Positions) -> Block:
        return [self.get(epoch, position) for position in as_ints(positions)]

    def get(self, epoch: int, position: int) -> Datapoint:
        members = self.members(epoch, position)
        rows = to_rows(self.inner.read(epoch, members))
        expected = self._lengths[members]
        by_length = self._by_length
        found = [
            by_length.told(by_length.length_of, row, number)
            for row, number in zip(rows, members.tolist(), strict=True)
        ]
        if found != expected.tolist():
            wrong = next(i for i, length in enumerate(found) if length != expected[i])
            raise DataFlowError(
                f"Datapoint {members[wrong]} has length {found[wrong]}.",
                expected=f"{expected[wrong]}, as lengths[{members[wrong]}] says",
                fix="give the lengths of `ds` in its own order; to shuffle, give shuffle=True "
                "rather than a shuffled `ds`",
            )
        bucket = int(self._by_length.buckets.of(expected[:1])[0])
        return self._by_length.collate(bucket, rows)

    def _batches(self, epoch: int) -> tuple[int, Array, Array]:
        last = self._last
        if last is not None and last[0] == epoch:
            return last
        order = np.arange(len(self._lengths), dtype=np.int64)
        if self._key is not None and len(order):
            order = permute(order, len(order), derive_seed(self._key, epoch))
        buckets = self._by_length.buckets
        where, starts = gather(
            buckets.of(self._lengths[order]),
            np.array(buckets.sizes, np.int64),
            remainder=self._by_length.remainder,
        )
        last = (epoch, order[where], starts)
        self._last = last  # one assignment: safe between threads
        return last

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None}
