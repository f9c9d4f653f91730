"""Stacking of datapoints along a new first axis.

    component            dtype of the stack
    array, NumPy scalar  its dtype; all must agree in shape and dtype
    bool                 bool
    int                  int64
    float                float32 (also for a mix of ints and floats)
    str, bytes           object (fixed-width arrays would cut trailing NUL bytes)
    list, tuple          dtype of an array of its numbers, by the rules above
                         (an empty list gets the dtype of the other lists)

Python numbers and NumPy scalars can be mixed if their dtypes by these rules agree.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import BatchError
from towerpack.dataflow._arena import Allocate
from towerpack.dataflow._batch_rows import RowLender
from towerpack.dataflow.datapoints import (
    Datapoint,
    array_of,
    choices_of,
    describe,
    describe_datapoint,
    is_datapoint,
    keys_of,
    name_of,
    rebuild,
)

Pad = float | Mapping[Hashable, float]
"""Padding value for all components, or a dict of values for ragged components."""

Array = NDArray[Any]
Into = tuple[Allocate, RowLender | None]
_NUMBERS = {bool: np.dtype(np.bool_), int: np.dtype(np.int64), float: np.dtype(np.float32)}
_CONVERT = "convert to one type before batching"
_LISTS = 'BatchData(stack="list")'
_RESHAPE = f"make the shapes agree before batching, or use BatchData(pad=...) or {_LISTS}"


def stack_rows(
    rows: Sequence[Datapoint],
    pad: Pad | None = None,
    allocate: Allocate = np.empty,
    lender: RowLender | None = None,
) -> Datapoint:
    """Stack datapoints into one. `allocate` or `lender` provides the memory of arrays."""
    _check_structure(rows)
    first = rows[0]
    unknown = pad.keys() - {*keys_of(first)} if isinstance(pad, Mapping) else ()
    for key in unknown:
        raise BatchError(
            f"pad= names the component {key!r}, but datapoints have no such component.",
            expected=choices_of(first),
        )
    into = allocate, lender
    keyed = zip(keys_of(first), _columns(rows), strict=True)
    return rebuild(first, [_stack(column, key, pad_value(pad, key), into) for key, column in keyed])


def list_rows(rows: Sequence[Datapoint]) -> Datapoint:
    _check_structure(rows)
    return rebuild(rows[0], map(list, _columns(rows)))


def _columns(rows: Sequence[Datapoint]) -> Sequence[Sequence[Any]]:
    # Dicts may differ in the order of their keys.
    if isinstance(rows[0], dict):
        return [[row[key] for row in rows] for key in keys_of(rows[0])]
    return list(zip(*rows, strict=True))


def _check_structure(rows: Sequence[Datapoint]) -> None:
    first = rows[0]
    if not is_datapoint(first):
        raise BatchError(
            f"A datapoint to batch must be a tuple, list or dict, got {describe(first)}.",
            fix="put single values into a tuple: (x,)",
        )
    kind, keys = cast("type[Any]", type(first)), keys_of(first)
    for index, row in enumerate(rows):
        if (
            type(row) is not kind
            or len(row) != len(keys)
            or (issubclass(kind, dict) and set(row) != set(keys))
        ):
            raise BatchError(
                f"Datapoint {index} of a batch cannot be stacked with datapoint 0.",
                got=describe_datapoint(row),
                expected=f"{describe_datapoint(first)}, as in datapoint 0",
                fix="give all datapoints the same structure before batching",
            )


def pad_value(pad: Pad | None, key: Hashable) -> float | None:
    return pad.get(key) if isinstance(pad, Mapping) else pad


def _stack(items: Sequence[Any], key: Hashable, pad: float | None, into: Into) -> Array:
    first = items[0]
    if isinstance(first, np.ndarray):
        return _stack_arrays(cast("Sequence[Array]", items), key, pad, into)
    if isinstance(first, (str, bytes)):  # before np.generic: np.str_ is both
        return _stack_texts(items, key)
    if isinstance(first, (np.generic, bool, int, float)):
        return _stack_numbers(items, key)
    if isinstance(first, (list, tuple)):
        arrays = [_from_sequence(item, i, key, items) for i, item in enumerate(items)]
        return _stack_arrays(empty_alike(arrays), key, pad, into)
    raise BatchError(
        f"Values of type {type(first).__name__} cannot be stacked into a batch.",
        got=f"{name_of(key)} {describe(first)}",
        expected="arrays, numbers, str or bytes",
        fix=f"convert the values before batching, select other components, or use {_LISTS}",
    )


def _stack_arrays(arrays: Sequence[Array], key: Hashable, pad: float | None, into: Into) -> Array:
    allocate, lender = into
    first = arrays[0]
    shape, dtype = first.shape, first.dtype
    ragged = False
    for index, array in enumerate(arrays):
        if type(array) is not np.ndarray:
            if not isinstance(cast("object", array), np.ndarray):
                raise _mismatch(index, key, array, first, _CONVERT)
            array_of(array, f"{name_of(key)} of datapoint {index}")  # rejects masked arrays
        if array.dtype != dtype:
            raise _mismatch(index, key, array, first, _CONVERT)
        if array.shape != shape:
            if pad is None or array.ndim != first.ndim:
                raise _mismatch(index, key, array, first, _RESHAPE)
            ragged = True
    if ragged and pad is not None:
        return _stack_padded(arrays, key, pad, allocate)
    if not shape:
        return np.array(arrays, dtype)
    whole = None if lender is None else lender.whole(arrays)
    if whole is not None:
        return whole
    # Not into the lent array: `arrays` may be its rows in another order.
    out = allocate((len(arrays), *shape), dtype)
    # Twice as fast as np.stack, which creates a view of every item first.
    np.concatenate(arrays, out=out.reshape(len(arrays) * shape[0], *shape[1:]))
    return out


def _stack_padded(arrays: Sequence[Array], key: Hashable, pad: float, allocate: Allocate) -> Array:
    shape = np.max([array.shape for array in arrays], axis=0).tolist()
    dtype = arrays[0].dtype
    try:
        with np.errstate(all="ignore"):  # an unfit value is reported below
            fill = np.array(pad).astype(dtype)
        fits = dtype.kind not in "biu" or bool(fill == pad)
    except (TypeError, ValueError, OverflowError):
        fill, fits = pad, False
    if not fits:
        raise BatchError(
            f"{name_of(key)} cannot be padded with {pad!r}.",
            expected=f"a value that {dtype} can hold",
            fix="change pad=, or the dtype of the component before batching",
        )
    out = allocate((len(arrays), *shape), dtype)
    out[...] = fill
    for row, array in zip(out, arrays, strict=True):
        row[tuple(slice(length) for length in array.shape)] = array
    return out


def _stack_numbers(items: Sequence[Any], key: Hashable) -> Array:
    kinds = {cast("type[Any]", type(item)) for item in items}
    becomes: dict[Any, Any] = _NUMBERS
    if float in kinds:
        becomes = {**_NUMBERS, int: _NUMBERS[float]}
    if len(kinds) == 1 and kinds <= becomes.keys():
        dtype = becomes[kinds.pop()]
    else:
        dtypes: list[Any] = [
            cast("Any", item).dtype if isinstance(item, np.generic) else becomes.get(type(item))
            for item in items
        ]
        dtype = dtypes[0]
        for index, other in enumerate(dtypes):
            if other is not dtype and (other is None or other != dtype):
                raise _mismatch(index, key, items[index], items[0], _CONVERT)
    try:
        if dtype.kind == "V":  # NumPy would take structured scalars for rows
            return np.stack([np.asarray(item) for item in items])
        return np.array(items, dtype)
    except OverflowError as error:
        raise BatchError(
            f"{name_of(key)} must not hold an integer beyond 64 bits.",
            fix="convert the integer before batching",
        ) from error


def _stack_texts(items: Sequence[Any], key: Hashable) -> Array:
    kind = str if isinstance(items[0], str) else bytes
    for index, item in enumerate(items):
        if not isinstance(item, kind):
            raise _mismatch(index, key, item, items[0], _CONVERT)
    out = np.empty(len(items), object)
    out[:] = [kind(item) for item in items]  # np.str_ and np.bytes_ become str and bytes
    return out


def _from_sequence(item: Any, index: int, key: Hashable, items: Sequence[Any]) -> Array:
    if not isinstance(item, (list, tuple)):
        raise _mismatch(index, key, item, items[0], _CONVERT)
    sequence = cast("Sequence[Any]", item)
    try:
        array = array_of(sequence, f"{name_of(key)} of datapoint {index}")
    except BatchError:
        raise
    except ValueError as error:
        raise BatchError(f"{name_of(key)} of datapoint {index} is a ragged list.") from error
    if array.dtype.kind in "OUS":
        raise BatchError(
            f"{name_of(key)} of datapoint {index} is a list of values that cannot be stacked.",
            fix=f"convert the list to an array before batching, or use {_LISTS}",
        )
    return _python_dtype(array, sequence)


def empty_alike(arrays: list[Array]) -> list[Array]:
    """Replace arrays of empty lists, whose dtype is unknown, by ones of the other arrays' dtype."""
    like = next((array for array in arrays if array.size), None)
    if like is None:
        return arrays
    empty = np.empty((0, *like.shape[1:]), like.dtype)
    return [empty if array.shape[:1] == (0,) else array for array in arrays]


def _python_dtype(array: Array, sequence: Sequence[Any]) -> Array:
    """Convert lists of Python floats to float32. Lists of NumPy scalars keep their dtype."""
    leaf: Any = sequence
    while isinstance(leaf, (list, tuple)) and leaf:
        leaf = cast("Any", leaf[0])
    if array.dtype == np.float64 and not isinstance(leaf, (np.generic, np.ndarray)):
        return array.astype(np.float32)
    return array


def _mismatch(index: int, key: Hashable, item: object, first: object, fix: str) -> BatchError:
    return BatchError(
        f"Datapoint {index} of a batch cannot be stacked with datapoint 0.",
        got=f"{name_of(key)} {describe(item)}",
        expected=f"{name_of(key)} {describe(first)}, as in datapoint 0",
        fix=fix,
    )
