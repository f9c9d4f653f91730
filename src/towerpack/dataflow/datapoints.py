"""Datapoints (tuples, lists or dicts of components) and blocks of many datapoints."""

from __future__ import annotations

import contextlib
import copy
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import BatchError

Datapoint = Any
"""Tuple, list or dict of components. Sources may yield other types, which cannot be batched."""

_UNCHANGING: Final = frozenset(
    {type(None), bool, int, float, complex, str, bytes, *np.sctypeDict.values()}
    - {np.void, np.object_}
)
_CONTAINERS: Final = (list, dict, OrderedDict, defaultdict)


def is_datapoint(value: object) -> bool:
    """Return whether a value has the type of a datapoint."""
    return isinstance(value, (tuple, list, dict))


def keys_of(datapoint: Datapoint) -> list[Hashable]:
    if isinstance(datapoint, dict):
        return list(cast("dict[Hashable, Any]", datapoint))
    return list(range(len(datapoint)))


def values_of(datapoint: Datapoint) -> list[Any]:
    """Return the components of a datapoint."""
    if isinstance(datapoint, dict):
        return list(cast("dict[Hashable, Any]", datapoint).values())
    return list(datapoint)


def rebuild(like: Datapoint, values: Iterable[Any]) -> Datapoint:
    """Return a datapoint with the type and keys of `like` and the given components."""
    if isinstance(like, dict):
        return dict(zip(cast("dict[Hashable, Any]", like), values, strict=True))
    if isinstance(like, list):
        return list(values)
    make = getattr(cast("type[Any]", type(like)), "_make", None)
    return make(values) if make is not None else tuple(values)


def replaced(datapoint: Datapoint, changed: Mapping[Any, Any]) -> Datapoint:
    if isinstance(datapoint, dict):
        return {**cast("dict[Hashable, Any]", datapoint), **changed}
    values = values_of(datapoint)
    for index, value in changed.items():
        values[index] = value
    return rebuild(datapoint, values)


def copied(datapoint: Datapoint) -> Datapoint:
    """Copy the container of a datapoint, so that a function may change it in place."""
    if isinstance(datapoint, dict):
        return dict(cast("dict[Hashable, Any]", datapoint))
    return list(cast("list[Any]", datapoint)) if isinstance(datapoint, list) else datapoint


def duplicate(value: Any, *, deep: bool = False, done: dict[int, Any] | None = None) -> Any:
    """Copy the arrays and containers of a datapoint, and with `deep` all other objects."""
    kind = cast("type[Any]", type(value))
    if kind in _UNCHANGING or (kind is tuple and _UNCHANGING.issuperset(map(type, value))):
        return value
    done = {} if done is None else done
    if id(value) in done:  # keeps references to one object identical
        return done[id(value)]
    if kind is np.ndarray and not value.dtype.hasobject:
        result = value.copy(order="K")
    elif kind is tuple or (issubclass(kind, tuple) and hasattr(value, "_make")):
        result = rebuild(value, [duplicate(item, deep=deep, done=done) for item in value])
    elif kind in _CONTAINERS:
        result = done[id(value)] = value.copy()  # a container may contain itself
        for key, item in value.items() if issubclass(kind, dict) else enumerate(value):
            result[key] = duplicate(item, deep=deep, done=done)
    elif issubclass(kind, memoryview):
        result = np.array(value).data
    else:
        result = value
        if deep or issubclass(kind, (np.ndarray, np.void, bytearray)):
            with contextlib.suppress(Exception):  # not all objects can be copied
                result = copy.deepcopy(value, done)
    done[id(value)] = result
    return result


def array_of(value: Any, name: str) -> NDArray[Any]:
    """Convert a component to an array. Raise a `BatchError` for masked arrays."""
    items = cast("Sequence[Any]", value) if isinstance(value, (list, tuple)) else (value,)
    if any(isinstance(item, np.ma.MaskedArray) for item in items):
        raise BatchError(
            f"{name} is a masked array, whose mask would be lost.",
            fix="call array.filled(...), or pass the mask as a separate component",
        )
    return np.asarray(cast("Any", value))


def name_of(key: Hashable) -> str:
    return f"component {key}" if isinstance(key, int) else str(key)


def choices_of(datapoint: Datapoint) -> str:
    """Return the indices or keys of a datapoint's components as text: `0, 1 or 2`."""
    names = [repr(key) for key in keys_of(datapoint)]
    return " or ".join(filter(None, [", ".join(names[:-1]), *names[-1:]])) or "components"


def describe(value: object) -> str:
    """Describe type, shape and dtype of a component: `uint8 [32, 32, 3]`."""
    if isinstance(value, (np.ndarray, np.generic)):
        array = cast("np.ndarray[Any, Any]", value)
        return f"{array.dtype} {list(array.shape)}"
    if isinstance(value, (str, bytes, list, tuple)):
        items = cast("Sequence[Any]", value)
        return f"{type(items).__name__} of length {len(items)}"
    return type(value).__name__


def describe_datapoint(datapoint: object) -> str:
    """Describe the types and shapes of all components of a datapoint."""
    if not is_datapoint(datapoint):
        return describe(datapoint)
    kind = type(datapoint).__name__
    values = [describe(value) for value in values_of(datapoint)]
    if isinstance(datapoint, dict):
        pairs = zip(keys_of(datapoint), values, strict=True)
        return f"{kind} {{{', '.join(f'{key}: {value}' for key, value in pairs)}}}"
    return f"{kind} ({', '.join(values)})"


Positions = range | NDArray[np.int64]
"""Positions of datapoints to read. A `range` has step 1."""


def bytes_of(value: Any) -> int:
    """Return the size of a component in bytes, or of all components of a datapoint."""
    if is_datapoint(value):
        return sum(map(bytes_of, values_of(value)))
    if isinstance(value, (np.ndarray, np.generic)):
        return cast("NDArray[Any]", value).nbytes
    if isinstance(value, (str, bytes)):
        return len(value)
    return 8 if isinstance(value, (int, float)) else 0


@dataclass(slots=True)
class Columns:
    """Block of `size` datapoints, stored as one datapoint with stacked components."""

    data: Datapoint
    size: int


Block = Columns | list[Datapoint]


def to_rows(block: Block) -> list[Datapoint]:
    if isinstance(block, list):
        return block
    data = block.data
    if type(data) is tuple:
        return list(zip(*cast("tuple[Any, ...]", data), strict=True))
    return [rebuild(data, row) for row in zip(*values_of(data), strict=True)]


def take(block: Block, order: NDArray[np.int64]) -> Block:
    """Return the datapoints of a block at the indices in `order`."""
    if isinstance(block, list):
        return [block[i] for i in order.tolist()]
    return Columns(rebuild(block.data, [c[order] for c in values_of(block.data)]), len(order))


def concatenate(blocks: Sequence[Block]) -> Block:
    if len(blocks) == 1:
        return blocks[0]
    columns = [block for block in blocks if isinstance(block, Columns)]
    if len(columns) == len(blocks) and len({_layout(block) for block in columns}) == 1:
        parts = zip(*(values_of(block.data) for block in columns), strict=True)
        # NumPy may change the byte order.
        joined = [np.concatenate(a).astype(a[0].dtype, copy=False) for a in parts]
        return Columns(rebuild(columns[0].data, joined), sum(block.size for block in columns))
    return [row for block in blocks for row in to_rows(block)]


def _layout(block: Columns) -> tuple[object, ...]:
    arrays = [(column.dtype, column.shape[1:]) for column in values_of(block.data)]
    return (cast("type[Any]", type(block.data)), tuple(keys_of(block.data)), tuple(arrays))


def read_groups(
    groups: NDArray[np.int64],
    local: NDArray[np.int64],
    read: Callable[[int, NDArray[np.int64]], Block],
) -> Block:
    """Read position `local[i]` of group `groups[i]` for each i, with one `read` per group."""
    order = np.argsort(groups, kind="stable")
    ends = np.flatnonzero(np.diff(groups[order])) + 1
    parts = np.split(order, ends)
    merged = concatenate([read(int(groups[part[0]]), local[part]) for part in parts])
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return take(merged, back)


def as_array(positions: Positions) -> NDArray[np.int64]:
    if isinstance(positions, range):
        return np.arange(positions.start, positions.stop, dtype=np.int64)
    return positions


def as_ints(positions: Positions) -> Sequence[int]:
    return positions if isinstance(positions, range) else positions.tolist()
