"""Datapoints into a slot and out of it, with large arrays where they will be read."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from towerpack.dataflow._datapoints import (
    Block,
    Columns,
    Datapoint,
    keys_of,
    rebuild,
    to_rows,
    values_of,
)
from towerpack.dataflow._memory import Arena, aligned, lent_empty
from towerpack.dataflow.parallel._memory import Bytes
from towerpack.dataflow.parallel._messages import dump, dump_code, load

# Smaller buffers are cheaper to copy twice than to describe.
_OUT_OF_BAND = 2048
# Slots are lent from here on; below, a copy is cheaper than looking after one.
WORTH_LENDING = 1 << 16


class Extents(NamedTuple):
    """Where in a slot a value lies: its pickle, and start and size of each array's memory."""

    start: int
    nbytes: int
    buffers: list[tuple[int, int]]

    @property
    def end(self) -> int:
        """The first byte that is free."""
        return max(start + size for start, size in ((self.start, self.nbytes), *self.buffers))

    @property
    def bulk(self) -> int:
        """Bytes of arrays."""
        return sum(size for _, size in self.buffers)


class Packed:
    """A pickled value that is ready to be put into a slot: its arrays are not copied yet.

    Raises:
        Exception: Whatever a member raises that does not pickle, not even by cloudpickle.
    """

    def __init__(self, value: Any) -> None:
        self._buffers: list[memoryview] = []
        try:
            self._data = dump(value, self._keep)
        except (pickle.PicklingError, AttributeError, TypeError):
            self._buffers.clear()
            self._data = dump_code(value, self._keep)

    def _keep(self, buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if view.nbytes < _OUT_OF_BAND:
            return True
        self._buffers.append(view)
        return False

    @property
    def most(self) -> int:
        """Bytes of a slot that is large enough."""
        end = 0
        for nbytes in (*(view.nbytes for view in self._buffers), len(self._data)):
            end = aligned(end, nbytes) + nbytes
        return end

    def put(self, arena: Arena) -> Extents | None:
        """Copy what is not in the arena into it; `None` if there is no room."""
        places: list[tuple[int, int]] = []
        for view in self._buffers:
            place = arena.put(view)
            if place is None:
                return None
            places.append((place, view.nbytes))
        start = arena.put(self._data)
        return None if start is None else Extents(start, len(self._data), places)


def unpack(extents: Extents, memory: Bytes, *, copy: bool) -> Any:
    """The value that lies in a slot; without `copy` its arrays lie there, and keep it alive."""
    view = memoryview(cast("Any", memory))
    parts: list[Any] = [view[start : start + size] for start, size in extents.buffers]
    if copy:
        parts = [np.frombuffer(part, np.uint8).copy() for part in parts]
    return load(view[extents.start : extents.start + extents.nbytes], parts)


def bundle(block: Block) -> Block:
    """Datapoints as columns, where that loses nothing: a few arrays instead of many small ones.

    A component is stacked if all of its values are arrays, or NumPy scalars, that are alike;
    otherwise its values are kept in a list.
    """
    if isinstance(block, Columns) or len(block) < 2:
        return block
    first: Any = block[0]
    kind = cast("type[Any]", type(first))
    if kind not in (tuple, list, dict):
        return block
    keys = keys_of(first)
    for row in block:
        if type(row) is not kind or len(values_of(row)) != len(keys):
            return block
        if kind is dict and keys_of(row) != keys:
            return block
    values = zip(*(row.values() if kind is dict else row for row in block), strict=True)
    columns = [_column(column) for column in values]
    if not any(isinstance(column, np.ndarray) for column in columns):
        return block
    return Columns(rebuild(first, columns), len(block))


def unbundle(block: Block) -> list[Datapoint]:
    """The datapoints of what `bundle` returned."""
    if isinstance(block, list):
        return block
    if any(isinstance(column, list) for column in values_of(block.data)):
        return [rebuild(block.data, row) for row in zip(*values_of(block.data), strict=True)]
    return to_rows(block)


def _column(values: Sequence[Any]) -> NDArray[Any] | list[Any]:
    first: Any = values[0]
    if type(first) is np.ndarray:
        shape, dtype = first.shape, first.dtype
        if shape and 0 not in shape and not dtype.hasobject and dtype.isnative:
            if not all(
                type(value) is np.ndarray
                and value.shape == shape
                and value.dtype == dtype
                and value.flags.c_contiguous
                for value in values
            ):
                return list(values)
            out = lent_empty((len(values), *shape), dtype)
            np.concatenate(values, out=out.reshape(len(values) * shape[0], *shape[1:]))
            return out
    elif isinstance(first, np.number):
        kind: Any = type(cast("object", first))
        if all(type(value) is kind for value in values):
            return np.array(values, kind)
    return list(values)
