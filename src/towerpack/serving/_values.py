"""Values of JSON from and to arrays, by TensorFlow Serving's rules (its `json_tensor.cc`).

Numbers are never rounded to whole ones, nor strings read as numbers; bytes are `{"b64": …}`; NaN
and Infinity are allowed.
"""

from __future__ import annotations

import base64
import re
from typing import Any

import numpy as np
import orjson

from towerpack._core.errors import RequestError
from towerpack.inference import TensorInfo

_NULL = re.compile(rb"null")
_WORDS = {"nan": b"NaN", "inf": b"Infinity", "-inf": b"-Infinity"}
_ALLOWED = {"b": {bool}, "f": {int, float}, "O": {str, dict}}


def numpy_dtype(info: TensorInfo) -> np.dtype[Any]:
    """The type of the array that holds a tensor: objects (bytes) for strings."""
    # NumPy has no bfloat16; runtimes convert.
    return np.dtype({"string": "object", "bfloat16": "float32"}.get(info.dtype, info.dtype))


def to_array(value: Any, info: TensorInfo) -> np.ndarray:
    """A parsed value as an array of an input's type. Values of another type are refused."""
    dtype = numpy_dtype(info)
    wrong = _leaf_types(value) - _ALLOWED.get(dtype.kind, {int})
    if wrong:
        found = ", ".join(kind.__name__ for kind in wrong)
        raise refused(info, f"JSON value of {found} is not of expected type: {info.dtype}")
    try:
        with np.errstate(over="raise"):
            return _strings(value) if dtype.kind == "O" else np.array(value, dtype)
    except (ValueError, ArithmeticError) as error:  # ragged lists, large numbers, wrong base64
        raise refused(info, str(error)) from error


def to_json(array: np.ndarray, name: str) -> Any:
    """What orjson is to write for an output, or for a row of one.

    Strings are `{"b64": …}` where the name ends in `_bytes`, or where they are no text.
    """
    if array.dtype.kind in "OSU":
        return _texts(array.tolist(), name.endswith("_bytes"))
    plain = np.ascontiguousarray(array) if array.ndim else array[()]
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return plain
    # orjson writes null for what is not finite; TensorFlow Serving writes words.
    words = (_WORDS[str(number)] for number in array[~np.isfinite(array)].tolist())
    text = orjson.dumps(plain, option=orjson.OPT_SERIALIZE_NUMPY)
    return orjson.Fragment(_NULL.sub(lambda _: next(words), text))


def refused(info: TensorInfo, what: str) -> RequestError:
    """The error of an input's value."""
    return RequestError(f"Input '{info.name}': {what}.")


def _leaf_types(value: Any) -> set[type]:
    if type(value) is not list:
        return {type(value)}
    if value and type(value[0]) is list:
        return set[type]().union(*map(_leaf_types, value))
    return set(map(type, value))


def _strings(value: Any) -> np.ndarray:
    found: list[bytes] = []

    def place(item: Any) -> Any:
        if isinstance(item, list):
            return [place(part) for part in item]
        found.append(_bytes(item))
        return len(found) - 1

    places = np.array(place(value), np.int64)
    strings = np.empty(len(found), object)
    strings[:] = found
    return strings[places.ravel()].reshape(places.shape)


def _bytes(value: str | dict[str, Any]) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    text = value.get("b64")
    if len(value) != 1 or not isinstance(text, str):
        raise ValueError("not formatted correctly for base64 data")
    return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)


def _texts(value: Any, as_bytes: bool) -> Any:
    if isinstance(value, list):
        return [_texts(item, as_bytes) for item in value]
    data = value.encode() if isinstance(value, str) else value
    try:
        return {"b64": base64.b64encode(data).decode()} if as_bytes else data.decode()
    except UnicodeDecodeError:
        return _texts(data, True)
