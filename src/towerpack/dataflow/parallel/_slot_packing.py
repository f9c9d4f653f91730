"""Serialization of datapoints into shared memory, without extra copies of large arrays."""

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
# Size in bytes from which a slot is lent. Smaller results are cheaper to copy.
WORTH_LENDING = 1 << 16


Extents = list[tuple[int, int]]
"""Offset and size, in a slot, of each large array of a value and of its pickle (last)."""


def pack(value: Any) -> list[memoryview]:
    """Return the memory of a value's large arrays, followed by its pickle, without copying."""
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
    if _MAIN in data:  # other processes cannot import from `__main__`
        parts.clear()
        data = dump_code(value, keep)
    return [*parts, memoryview(data)]


def space_for(parts: Sequence[memoryview]) -> int:
    end = 0
    for part in parts:
        end = aligned(end, part.nbytes) + part.nbytes
    return end


def put(parts: Sequence[memoryview], arena: Arena) -> Extents | None:
    """Copy parts to an arena unless they are there already. Return `None` if they do not fit."""
    extents: Extents = []
    for part in parts:
        start = arena.put(part)
        if start is None:
            return None
        extents.append((start, part.nbytes))
    return extents


def unpack(extents: Extents, memory: Bytes, *, copy: bool) -> Any:
    """Load the value in a slot. Without `copy`, its arrays are views of the slot."""
    view = memoryview(cast("Any", memory))
    *parts, data = [view[start : start + size] for start, size in extents]
    if copy:
        return load(data, [np.frombuffer(part, np.uint8).copy() for part in parts])
    return load(data, parts)


def bundle(block: Block) -> Block:
    """Stack datapoints to columns, if `to_rows` would restore the datapoints exactly."""
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
    if any(type(value) is not kind for value in values):
        return list(values)
    if issubclass(kind, np.number) and first.dtype.kind != "m":  # units of durations may differ
        return np.array(values)
    if kind is not np.ndarray:
        return list(values)
    shape, dtype = first.shape, first.dtype
    plain = shape and 0 not in shape and not dtype.hasobject and dtype.isnative
    if not plain or any(value.shape != shape or value.dtype != dtype for value in values):
        return list(values)
    if not all(value.flags.c_contiguous for value in values):
        return list(values)
    out = lent_empty((len(values), *shape), dtype)
    np.concatenate(values, out=out.reshape(len(values) * shape[0], *shape[1:]))
    return out
