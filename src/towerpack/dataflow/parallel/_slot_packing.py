"""Datapoints into a slot and out of it, with large arrays where they will be read."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from towerpack.dataflow._arena import Arena, aligned, lent_empty
from towerpack.dataflow.datapoints import Block, Columns, keys_of, rebuild
from towerpack.dataflow.parallel._pickles_and_errors import dump, dump_code, load
from towerpack.dataflow.parallel._slots import Bytes

# Smaller buffers are cheaper to copy twice than to describe.
_OUT_OF_BAND = 2048
_MAIN = b"__main__"
# Slots are lent from here on; below, a copy is cheaper than looking after one.
WORTH_LENDING = 1 << 16


Extents = list[tuple[int, int]]
"""Where in a slot a value lies: start and size of the memory of each array, last of its pickle."""


def pack(value: Any) -> list[memoryview]:
    """The memory of the large arrays of a value, and last its pickle; nothing is copied yet."""
    parts: list[memoryview] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if view.nbytes < _OUT_OF_BAND:
            return True
        parts.append(view)
        return False

    try:
        data = dump(value, keep)
    except (pickle.PicklingError, AttributeError, TypeError):
        data = _MAIN
    if _MAIN in data:  # another process does not find by name what is defined there
        parts.clear()
        data = dump_code(value, keep)
    return [*parts, memoryview(data)]


def space_for(parts: Sequence[memoryview]) -> int:
    end = 0
    for part in parts:
        end = aligned(end, part.nbytes) + part.nbytes
    return end


def put(parts: Sequence[memoryview], arena: Arena) -> Extents | None:
    """Copy what is not in the arena into it; `None` if there is no room."""
    places: Extents = []
    for part in parts:
        start = arena.put(part)
        if start is None:
            return None
        places.append((start, part.nbytes))
    return places


def unpack(extents: Extents, memory: Bytes, *, copy: bool) -> Any:
    """The value that lies in a slot; without `copy` its arrays lie there, and keep it alive."""
    view = memoryview(cast("Any", memory))
    *parts, data = [view[start : start + size] for start, size in extents]
    if copy:
        return load(data, [np.frombuffer(part, np.uint8).copy() for part in parts])
    return load(data, parts)


def bundle(block: Block) -> Block:
    """Datapoints as columns, if that loses nothing; `to_rows` undoes it.

    Values of a component are stacked if they are arrays, or NumPy scalars, that are alike.
    """
    if isinstance(block, Columns) or len(block) < 2:
        return block
    first: Any = block[0]
    kind = cast("type[Any]", type(first))
    if kind not in (tuple, list, dict):
        return block
    keys = keys_of(first)
    if any(type(row) is not kind for row in block):
        return block
    if any(len(row) != len(keys) or (kind is dict and list(row) != keys) for row in block):
        return block
    values = zip(*(row.values() if kind is dict else row for row in block), strict=True)
    columns = [_column(column) for column in values]
    if not any(isinstance(column, np.ndarray) for column in columns):
        return block
    return Columns(rebuild(first, columns), len(block))


def _column(values: Sequence[Any]) -> NDArray[Any] | list[Any]:
    first: Any = values[0]
    kind = cast("type[Any]", type(first))
    if any(type(one) is not kind for one in values):
        return list(values)
    if issubclass(kind, np.number) and first.dtype.kind != "m":  # units of durations may differ
        return np.array(values)
    if kind is not np.ndarray:
        return list(values)
    shape, dtype = first.shape, first.dtype
    plain = shape and 0 not in shape and not dtype.hasobject and dtype.isnative
    if not plain or any(one.shape != shape or one.dtype != dtype for one in values):
        return list(values)
    if not all(one.flags.c_contiguous for one in values):
        return list(values)
    out = lent_empty((len(values), *shape), dtype)
    np.concatenate(values, out=out.reshape(len(values) * shape[0], *shape[1:]))
    return out
