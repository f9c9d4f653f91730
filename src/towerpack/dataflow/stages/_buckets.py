"""Buckets: which lengths go together, and which datapoints make up which batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError, DataFlowError
from towerpack.dataflow._arguments import given, integer_of

Array = NDArray[np.int64]


class Buckets:
    """Which lengths go together, and how many datapoints make a batch of them.

    Args:
        boundaries: The greatest lengths of all buckets but the last.
        batch_size: Datapoints in a batch, for all buckets or for each.
        max_tokens: Instead: tokens in a batch.
    """

    def __init__(
        self,
        boundaries: Sequence[int],
        batch_size: int | Sequence[int] | None,
        max_tokens: int | None,
    ) -> None:
        self.boundaries = _integers(boundaries, "boundaries")
        if any(low >= high for low, high in pairwise([0, *self.boundaries])):
            raise ConfigError(
                f"Boundaries {self.boundaries} make no buckets.", expected="ascending, above 0"
            )
        if (batch_size is None) == (max_tokens is None):
            raise ConfigError("Give a batch_size, or max_tokens, and not both.")
        self.limit: int | None = None
        if max_tokens is not None:
            self.sizes = self._sizes_by_tokens(integer_of(max_tokens, "max_tokens"))
        elif isinstance(batch_size, Iterable) and not isinstance(batch_size, str):
            self.sizes = _integers(batch_size, "batch_size")
        else:
            size = integer_of(batch_size, "batch_size")
            self.sizes = [size] * (len(self.boundaries) + 1)
        if len(self.sizes) != len(self.boundaries) + 1 or min(self.sizes) < 1:
            raise ConfigError(
                f"Batch sizes {self.sizes} do not fit boundaries {self.boundaries}.",
                expected=f"{len(self.boundaries) + 1}, each 1 or more",
            )

    def __str__(self) -> str:
        sizes = self.sizes[:-1] if self.limit is not None else self.sizes
        shown = sizes[0] if len(set(sizes)) == 1 else sizes
        return f"{shown}, {self.boundaries}" + (", no longer" * (self.limit is not None))

    def of(self, lengths: Array) -> Array:
        """The buckets of lengths."""
        return np.searchsorted(self.boundaries, lengths, side="left")

    def check(self, length: int) -> None:
        """Refuse what is too long for a bucket that is limited by tokens."""
        if self.limit is not None and length > self.limit:
            raise DataFlowError(
                f"A datapoint of length {length} is longer than the last boundary.",
                expected=f"at most {self.limit}",
                fix="cut it or leave it out (MapData, FilterData), or add a boundary",
            )

    def _sizes_by_tokens(self, max_tokens: int) -> list[int]:
        if not self.boundaries or self.boundaries[-1] > max_tokens:
            raise ConfigError(
                f"max_tokens={max_tokens} does not go with boundaries {self.boundaries}.",
                expected="one or more boundaries, none above max_tokens",
            )
        self.limit = self.boundaries[-1]
        return [max_tokens // boundary for boundary in self.boundaries] + [1]


def _integers(values: Any, name: str) -> list[int]:
    if not isinstance(values, Iterable):
        raise ConfigError(
            f"{name} must be a list.", got=given(values), expected="a list of integers"
        )
    numbered = enumerate(cast("Iterable[Any]", values))
    return [integer_of(value, f"{name}[{index}]") for index, value in numbered]


def gather(groups: Array, sizes: Array, *, remainder: bool) -> tuple[Array, Array]:
    """Put positions together as `GroupStream` does, all at once.

    Args:
        groups: The group of each position.
        sizes: For each group the size of a full batch.
        remainder: Whether batches that are not full follow at the end.

    Returns:
        The positions, batch after batch; and where each batch starts among them, and the end.
    """
    by_group = np.argsort(groups, kind="stable")
    group = groups[by_group]
    first_of_group = np.searchsorted(group, np.arange(len(sizes)))
    rank = np.arange(len(group), dtype=np.int64) - first_of_group[group]
    firsts = np.flatnonzero(rank % sizes[group] == 0)
    ends = np.append(firsts, len(group))[1:]
    full = ends - firsts == sizes[group[firsts]]
    if not remainder:
        firsts, ends, full = firsts[full], ends[full], full[full]
    # Full batches by their last members, then the others by their first.
    when = np.where(full, by_group[ends - 1], len(group) + by_group[firsts])
    order = np.argsort(when, kind="stable")
    firsts, counts = firsts[order], (ends - firsts)[order]
    starts = np.concatenate(([0], np.cumsum(counts)))
    inside = np.arange(sum(counts.tolist())) - np.repeat(starts[:-1], counts)
    return by_group[np.repeat(firsts, counts) + inside], starts
