"""Several datapoints at once: a list of them, or columns of stacked components.

Plans read in blocks. Columns are what keeps flows over arrays out of Python loops: a source, a
shuffle, a vectorised map and a batch hand on whole arrays, and only a consumer that wants single
datapoints takes them apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from towerpack.dataflow._datapoints import Datapoint, keys_of, rebuild, values_of

Positions = range | NDArray[np.int64]
"""Which datapoints to read. A `range` has step 1."""


class Columns:
    """`size` datapoints as one datapoint whose components are stacked along a first axis."""

    __slots__ = ("data", "size")

    def __init__(self, data: Datapoint, size: int) -> None:
        self.data = data
        self.size = size


Block = Columns | list[Datapoint]


def block_size(block: Block) -> int:
    """How many datapoints a block holds."""
    return block.size if isinstance(block, Columns) else len(block)


def to_rows(block: Block) -> list[Datapoint]:
    """The datapoints of a block, one by one."""
    if isinstance(block, list):
        return block
    data = block.data
    if type(data) is tuple:
        return list(zip(*cast("tuple[Any, ...]", data), strict=True))
    return [rebuild(data, row) for row in zip(*values_of(data), strict=True)]


def take(block: Block, order: NDArray[np.int64]) -> Block:
    """The datapoints of a block in another order."""
    if isinstance(block, list):
        return [block[i] for i in order.tolist()]
    return Columns(rebuild(block.data, [c[order] for c in values_of(block.data)]), len(order))


def concatenate(blocks: Sequence[Block]) -> Block:
    """One block after another; columns stay columns where all agree in structure and dtype."""
    if len(blocks) == 1:
        return blocks[0]
    columns = [block for block in blocks if isinstance(block, Columns)]
    if len(columns) == len(blocks) and len({_layout(block) for block in columns}) == 1:
        parts = zip(*(values_of(block.data) for block in columns), strict=True)
        joined = [np.concatenate(arrays) for arrays in parts]
        return Columns(rebuild(columns[0].data, joined), sum(block.size for block in columns))
    return [row for block in blocks for row in to_rows(block)]


def _layout(block: Columns) -> tuple[object, ...]:
    arrays = [(column.dtype.str, column.shape[1:]) for column in values_of(block.data)]
    return (cast("type[Any]", type(block.data)), tuple(keys_of(block.data)), tuple(arrays))


def read_groups(
    groups: NDArray[np.int64],
    local: NDArray[np.int64],
    read: Callable[[int, NDArray[np.int64]], Block],
) -> Block:
    """Read positions that lie in several places, and return them in the order asked for.

    Args:
        groups: For each position the place that holds it.
        local: For each position where it is in that place.
        read: Reads positions of one place.
    """
    order = np.argsort(groups, kind="stable")
    ends = np.flatnonzero(np.diff(groups[order])) + 1
    parts = np.split(order, ends)
    merged = concatenate([read(int(groups[part[0]]), local[part]) for part in parts])
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return take(merged, back)


def as_array(positions: Positions) -> NDArray[np.int64]:
    """Positions as an index array."""
    if isinstance(positions, range):
        return np.arange(positions.start, positions.stop, dtype=np.int64)
    return positions


def as_ints(positions: Positions) -> Sequence[int]:
    """Positions as Python integers."""
    return positions if isinstance(positions, range) else positions.tolist()
