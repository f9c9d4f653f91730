"""Datapoints, one or many: a tuple, list or dict of components, taken apart and put together alike.

Plans read in blocks: lists of datapoints, or columns of stacked components. Columns are what keeps
flows over arrays out of Python loops: a source, a shuffle, a vectorised map and a batch hand on
whole arrays, and only a consumer that wants single datapoints takes them apart.
"""

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
"""A tuple, list or dict of components. Sources may yield anything; batching needs one of these."""

_UNCHANGING: Final = frozenset(
    {type(None), bool, int, float, complex, str, bytes, *np.sctypeDict.values()}
    - {np.void, np.object_}
)
_CONTAINERS: Final = (list, dict, OrderedDict, defaultdict)


def is_datapoint(value: object) -> bool:
    """Return whether a value has the type of a datapoint."""
    return isinstance(value, (tuple, list, dict))


def keys_of(datapoint: Datapoint) -> list[Hashable]:
    """Names of the components: the keys of a dict, otherwise 0, 1, ..."""
    if isinstance(datapoint, dict):
        return list(cast("dict[Hashable, Any]", datapoint))
    return list(range(len(datapoint)))


def values_of(datapoint: Datapoint) -> list[Any]:
    """Return the components of a datapoint."""
    if isinstance(datapoint, dict):
        return list(cast("dict[Hashable, Any]", datapoint).values())
    return list(datapoint)


def rebuild(like: Datapoint, values: Iterable[Any]) -> Datapoint:
    """A datapoint of the kind (and keys, and named tuple) of `like` with other components."""
    if isinstance(like, dict):
        return dict(zip(cast("dict[Hashable, Any]", like), values, strict=True))
    if isinstance(like, list):
        return list(values)
    make = getattr(cast("type[Any]", type(like)), "_make", None)
    return make(values) if make is not None else tuple(values)


def replaced(datapoint: Datapoint, changed: Mapping[Any, Any]) -> Datapoint:
    """A new datapoint of the same kind with other components at some indices or keys."""
    if isinstance(datapoint, dict):
        return {**cast("dict[Hashable, Any]", datapoint), **changed}
    values = values_of(datapoint)
    for index, value in changed.items():
        values[index] = value
    return rebuild(datapoint, values)


def copied(datapoint: Datapoint) -> Datapoint:
    """A new container with the same components, so that a function may change it in place."""
    if isinstance(datapoint, dict):
        return dict(cast("dict[Hashable, Any]", datapoint))
    return list(cast("list[Any]", datapoint)) if isinstance(datapoint, list) else datapoint


def duplicate(value: Any, *, deep: bool = False, done: dict[int, Any] | None = None) -> Any:
    """Copy the arrays of a datapoint and their containers; other objects only if `deep`."""
    kind = cast("type[Any]", type(value))
    if kind in _UNCHANGING or (kind is tuple and _UNCHANGING.issuperset(map(type, value))):
        return value
    done = {} if done is None else done
    if id(value) in done:  # what is one object stays one
        return done[id(value)]
    if kind is np.ndarray and not value.dtype.hasobject:
        made = value.copy(order="K")
    elif kind is tuple or (issubclass(kind, tuple) and hasattr(value, "_make")):
        made = rebuild(value, [duplicate(one, deep=deep, done=done) for one in value])
    elif kind in _CONTAINERS:
        made = done[id(value)] = value.copy()  # which it may hold itself
        for key, one in value.items() if issubclass(kind, dict) else enumerate(value):
            made[key] = duplicate(one, deep=deep, done=done)
    elif issubclass(kind, memoryview):
        made = np.array(value).data
    else:
        made = value
        if deep or issubclass(kind, (np.ndarray, np.void, bytearray)):
            with contextlib.suppress(Exception):  # it holds what cannot be copied
                made = copy.deepcopy(value, done)
    done[id(value)] = made
    return made


def array_of(value: Any, name: str) -> NDArray[Any]:
    """Convert a component to an array. Refuse masked arrays, whose masks would be dropped."""
    items = cast("Sequence[Any]", value) if isinstance(value, (list, tuple)) else (value,)
    if any(isinstance(item, np.ma.MaskedArray) for item in items):
        raise BatchError(
            f"{name} is a masked array, whose mask would be lost.",
            fix="call array.filled(...), or pass the mask as a component of its own",
        )
    return np.asarray(cast("Any", value))


def name_of(key: Hashable) -> str:
    """Return the name of a component for messages."""
    return f"component {key}" if isinstance(key, int) else str(key)


def choices_of(datapoint: Datapoint) -> str:
    """The indices or keys of the components, for messages: `0, 1 or 2`."""
    names = [repr(key) for key in keys_of(datapoint)]
    return " or ".join(filter(None, [", ".join(names[:-1]), *names[-1:]])) or "components"


def describe(value: object) -> str:
    """Type, shape and dtype of one component, for messages: `uint8 [32, 32, 3]`."""
    if isinstance(value, (np.ndarray, np.generic)):
        array = cast("np.ndarray[Any, Any]", value)
        return f"{array.dtype} {list(array.shape)}"
    if isinstance(value, (str, bytes, list, tuple)):
        items = cast("Sequence[Any]", value)
        return f"{type(items).__name__} of length {len(items)}"
    return type(value).__name__


def describe_datapoint(datapoint: object) -> str:
    """Return the types and shapes of all components, for messages."""
    if not is_datapoint(datapoint):
        return describe(datapoint)
    kind = type(datapoint).__name__
    values = [describe(value) for value in values_of(datapoint)]
    if isinstance(datapoint, dict):
        pairs = zip(keys_of(datapoint), values, strict=True)
        return f"{kind} {{{', '.join(f'{key}: {value}' for key, value in pairs)}}}"
    return f"{kind} ({', '.join(values)})"


Positions = range | NDArray[np.int64]
"""Which datapoints to read. A `range` has step 1."""


def bytes_of(value: Any) -> int:
    """Return the size of a component in bytes; of a datapoint, of all its components."""
    if is_datapoint(value):
        return sum(map(bytes_of, values_of(value)))
    if isinstance(value, (np.ndarray, np.generic)):
        return cast("NDArray[Any]", value).nbytes
    if isinstance(value, (str, bytes)):
        return len(value)
    return 8 if isinstance(value, (int, float)) else 0


@dataclass(slots=True)
class Columns:
    """`size` datapoints as one datapoint whose components are stacked along a first axis."""

    data: Datapoint
    size: int


Block = Columns | list[Datapoint]


def to_rows(block: Block) -> list[Datapoint]:
    """Return a block as a list of datapoints."""
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
    """One block after another; columns stay columns where all agree in structure and dtype."""
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
    """Read positions, each at `local` within one of several `groups`, in the order asked for."""
    order = np.argsort(groups, kind="stable")
    ends = np.flatnonzero(np.diff(groups[order])) + 1
    parts = np.split(order, ends)
    merged = concatenate([read(int(groups[part[0]]), local[part]) for part in parts])
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return take(merged, back)


def as_array(positions: Positions) -> NDArray[np.int64]:
    """Return positions as an array."""
    if isinstance(positions, range):
        return np.arange(positions.start, positions.stop, dtype=np.int64)
    return positions


def as_ints(positions: Positions) -> Sequence[int]:
    """Return positions as Python integers."""
    return positions if isinstance(positions, range) else positions.tolist()
