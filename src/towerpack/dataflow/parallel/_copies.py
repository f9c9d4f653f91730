"""Datapoints set apart from code of the user's that may write over what it has given.

A generator may fill one array again and again: read by itself that is right, as each datapoint is
used before the next one is asked for. Whoever reads ahead has to copy first.
"""

from __future__ import annotations

import contextlib
import copy
import pickle
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any, Final, cast

import numpy as np

from towerpack.dataflow._datapoints import Datapoint, rebuild
from towerpack.dataflow._flow import DataFlow, Place, compile_flow, inputs_of, is_exact
from towerpack.dataflow._user_code import is_ours
from towerpack.dataflow.parallel._pickling import dump, dump_code, load
from towerpack.dataflow.sources._iterables import DataFromGenerator, DataFromIterable

Others = Callable[[Any], Any]
"""What is to become of objects of kinds that are not known here."""

_UNCHANGING: Final = frozenset(
    {type(None), bool, int, float, complex, str, bytes, *np.sctypeDict.values()}
    - {np.void, np.object_}
)
_CONTAINERS: Final = (list, dict, OrderedDict, defaultdict)


def may_write_over(flow: DataFlow) -> bool:
    """Whether datapoints come from iterating code of the user's, which may use memory again.

    The sources and stages of the library never do.
    """
    if not is_exact(flow) or not is_ours(type(flow)):
        return compile_flow(flow, Place(0, serial=True)) is None
    iterates = isinstance(flow, (DataFromGenerator, DataFromIterable))
    return iterates or any(map(may_write_over, inputs_of(flow)))


def own_copy(datapoint: Datapoint, others: Others) -> Datapoint:
    """A datapoint in memory of its own: arrays, and what holds them, are copied.

    Args:
        datapoint: Not changed.
        others: What is to become of objects of other kinds.
    """
    if type(datapoint) is tuple:
        copied = _copies_of_arrays(cast("tuple[Any, ...]", datapoint))
        if copied is not None:
            return tuple(copied)
    return _copy(datapoint, others, {})


def _copies_of_arrays(values: tuple[Any, ...]) -> list[Any] | None:
    """The same with copies of arrays, if there is nothing else to copy: in half the time."""
    made: list[Any] = []
    arrays: set[int] = set()
    for value in values:
        kind = cast("type[Any]", type(value))
        if kind in _UNCHANGING:
            made.append(value)
        elif kind is np.ndarray and not value.dtype.hasobject and id(value) not in arrays:
            arrays.add(id(value))
            made.append(value.copy(order="K"))
        else:
            return None
    return made


def _copy(value: Any, others: Others, done: dict[int, Any]) -> Any:
    if type(value) in _UNCHANGING:
        return value
    made = done.get(id(value))  # what is one object stays one
    if made is None:
        made = done[id(value)] = _new(value, others, done)
    return made


def _new(value: Any, others: Others, done: dict[int, Any]) -> Any:
    kind = cast("type[Any]", type(value))
    if kind is tuple or (tuple in kind.__mro__ and hasattr(kind, "_make")):
        return rebuild(value, [_copy(one, others, done) for one in value])
    if kind in _CONTAINERS:
        return _fill(value.copy(), value, others, done)
    if kind is np.ndarray and not value.dtype.hasobject:
        return value.copy(order="K")
    with contextlib.suppress(Exception):  # it holds what cannot be copied
        if isinstance(value, (np.ndarray, np.void, bytearray)):
            return copy.deepcopy(cast("Any", value))
        if isinstance(value, memoryview):
            return np.array(cast("Any", value)).data
    return others(value)


def _fill(made: Any, value: Any, others: Others, done: dict[int, Any]) -> Any:
    done[id(value)] = made  # which it may hold itself
    is_dict = isinstance(made, dict)
    for key, one in value.items() if is_dict else enumerate(value):
        if type(one) not in _UNCHANGING:
            made[key] = _copy(one, others, done)
    return made


class _Pickled:
    """An object as it was."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __reduce__(self) -> Any:
        return load, (pickle.PickleBuffer(self._data),)


def pickled(value: Any) -> Any:
    """What pickles like a value as it is now; the value itself if that does not pickle."""
    for pickling in (dump, dump_code):
        with contextlib.suppress(Exception):
            return _Pickled(pickling(value))
    return value
