"""Lossless conversion of state to JSON: the decoded Python value equals the encoded one.

Values that plain JSON can hold stay plain, so that `state.json` is readable. Other values become an
object with one key that begins with `$`:

    {"$float": "nan"}                    nan, inf, -inf
    {"$int": "0x1f…"}                    an integer of more than 64 bits
    {"$bytes": "…"}                      base64
    {"$tuple": […]}
    {"$dict": [[key, value], …]}         keys that are not strings, or begin with `$`
    {"$array": ["<f4", [2, 3], "…"]}     NumPy array: dtype, shape, base64 in C order
    {"$scalar": ["<f4", "…"]}            NumPy scalar

Decoding executes nothing and looks up no class by name, so it is safe for untrusted files.
"""

import base64
import binascii
import json
import math
from collections.abc import Callable
from typing import Any, Final, cast

import numpy as np

from towerpack._core.errors import StateError

_ARRAY_KINDS: Final = "biufc"


def encode_state(state: Any) -> bytes:
    """Return a state as JSON text in UTF-8.

    Args:
        state: Tree of dicts, lists, tuples, plain values and numeric NumPy arrays.

    Raises:
        StateError: A value cannot be stored exactly. The message gives its place in the tree.
    """
    try:
        tree = _encode(state, "state")
        text = json.dumps(tree, allow_nan=False, indent=1)
    except RecursionError:
        raise StateError(
            "The state must be a tree without cycles, but is nested too deeply or contains itself.",
            fix="remove the cycle, or store fewer nested dicts and lists",
        ) from None
    return text.encode() + b"\n"


def decode_state(data: bytes | bytearray | memoryview) -> Any:
    """Return the state from the JSON text that `encode_state` returned.

    Args:
        data: JSON text in UTF-8.

    Raises:
        StateError: The data is not the JSON text of a state.
    """
    try:
        tree = json.loads(bytes(data), parse_constant=_refuse_constant)
        return _decode(tree)
    except (ValueError, TypeError, KeyError, RecursionError, binascii.Error) as error:
        raise StateError(f"The data is not the JSON text of a saved state: {error}.") from error


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"the bare constant {name} is not JSON")


def _encode(value: Any, where: str) -> Any:
    # A subclass, such as an enum or a defaultdict, would come back as another type.
    kind = cast("type[Any]", type(value))
    if value is None or kind is bool or kind is str:
        return value
    if kind is int:
        return value if -(2**63) <= value < 2**64 else {"$int": hex(value)}
    if kind is float:
        return value if math.isfinite(value) else {"$float": repr(value)}
    if kind is list:
        return [_encode(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if kind is tuple:
        return {"$tuple": [_encode(item, f"{where}[{i}]") for i, item in enumerate(value)]}
    if kind is dict:
        items = [(key, _encode(item, f"{where}[{key!r}]")) for key, item in value.items()]
        if all(type(key) is str and not key.startswith("$") for key in value):
            return dict(items)
        return {"$dict": [[_encode(key, f"a key of {where}"), item] for key, item in items]}
    if kind is bytes:
        return {"$bytes": base64.b64encode(value).decode()}
    if kind is np.ndarray or issubclass(kind, np.generic):
        array: np.ndarray = np.asarray(value)
        name = array.dtype.str
        if array.dtype.kind in _ARRAY_KINDS:
            if kind is np.ndarray:
                return {"$array": [name, list(array.shape), _base64(array)]}
            return {"$scalar": [name, _base64(array)]}
    raise StateError(
        f"{where} must be str, int, float, bool, None, bytes, list, tuple, dict or a numeric NumPy "
        f"array to be stored in a checkpoint, got {kind.__module__}.{kind.__qualname__} "
        f"{value!r:.80}.",
        fix="convert the value in state(), and back in restore()",
    )


def _base64(array: np.ndarray) -> str:
    return base64.b64encode(array.tobytes()).decode()


def _decode(tree: Any) -> Any:
    if isinstance(tree, list):
        return [_decode(item) for item in cast("list[Any]", tree)]
    if not isinstance(tree, dict):
        return tree
    items = cast("dict[str, Any]", tree)
    tag = next((key for key in items if key.startswith("$")), None)
    if tag is None:
        return {key: _decode(item) for key, item in items.items()}
    if len(items) != 1 or tag not in _DECODERS:
        raise ValueError(f"unknown tag {tag!r}")
    return _DECODERS[tag](items[tag])


def _decode_bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _decode_array(name: Any, shape: list[Any], data: str) -> np.ndarray:
    dtype = np.dtype(str(name))
    if dtype.kind not in _ARRAY_KINDS:
        raise ValueError(f"dtype {name!r:.80} is not numeric")
    if not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"bad array shape {shape!r:.80}")
    return np.frombuffer(_decode_bytes(data), dtype).reshape(shape).copy()


_DECODERS: Final[dict[str, Callable[[Any], Any]]] = {
    "$float": lambda text: {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[text],
    "$int": lambda text: int(text, 16),
    "$bytes": _decode_bytes,
    "$tuple": lambda items: tuple(_decode(item) for item in items),
    "$dict": lambda pairs: {_decode(key): _decode(item) for key, item in pairs},
    "$array": lambda fields: _decode_array(*fields),
    "$scalar": lambda fields: _decode_array(fields[0], [], *fields[1:])[()],
}
