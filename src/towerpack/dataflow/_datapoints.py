"""Datapoints: a tuple, list or dict of components, taken apart and put together alike."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np

_MANY = 20

Datapoint = Any
"""A tuple, list or dict of components. Sources may yield anything; batching needs one of these."""


def is_datapoint(value: object) -> bool:
    """Whether `value` has components."""
    return isinstance(value, (tuple, list, dict))


def keys_of(datapoint: Datapoint) -> list[Hashable]:
    """Names of the components: the keys of a dict, otherwise 0, 1, ..."""
    if isinstance(datapoint, dict):
        return list(cast("dict[Hashable, Any]", datapoint))
    return list(range(len(datapoint)))


def values_of(datapoint: Datapoint) -> list[Any]:
    """The components in order."""
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


def name_of(key: Hashable) -> str:
    """How messages call the component `key`."""
    return f"component {key}" if isinstance(key, int) else str(key)


def choices_of(datapoint: Datapoint) -> str:
    """The indices or keys of the components, for messages: `0, 1 or 2`."""
    names = [repr(key) for key in keys_of(datapoint)]
    if len(names) > _MANY:
        names = [*names[:3], "...", names[-1]]
    return " or ".join(filter(None, [", ".join(names[:-1]), *names[-1:]])) or "components"


def describe(value: object) -> str:
    """Type, shape and dtype of one component, for messages: `uint8 [32, 32, 3]`."""
    if isinstance(value, (np.ndarray, np.generic)):
        array = cast("np.ndarray[Any, Any]", value)
        return f"{array.dtype} {list(array.shape)}"
    if isinstance(value, (str, bytes)):
        return f"{type(value).__name__} of length {len(value)}"
    if isinstance(value, (list, tuple)):
        items = cast("Sequence[Any]", value)
        return f"{type(items).__name__} of length {len(items)}"
    return type(value).__name__


def describe_datapoint(datapoint: object) -> str:
    """All components of a datapoint in one line, for messages."""
    if not is_datapoint(datapoint):
        return describe(datapoint)
    pairs = zip(keys_of(datapoint), values_of(datapoint), strict=True)
    if isinstance(datapoint, dict):
        return "{" + ", ".join(f"{key}: {describe(value)}" for key, value in pairs) + "}"
    return f"{type(datapoint).__name__} (" + ", ".join(describe(value) for _, value in pairs) + ")"
