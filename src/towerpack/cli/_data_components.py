from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import numpy as np

_MANY = 16
_DEEP = 4
_TEXT = 48


@dataclass(frozen=True)
class Component:
    """Leaf value of a datapoint. `name` is its path of keys, `value` its range or text."""

    name: str
    type: str
    shape: tuple[int, ...] | None
    value: str
    nbytes: int


def components_of(datapoint: Any) -> list[Component]:
    """Return the leaf values of a datapoint in order. Long lists and deep levels are not split."""
    return list(_leaves(datapoint, ""))


def _leaves(value: Any, name: str, depth: int = 0) -> Iterator[Component]:
    from towerpack.dataflow.datapoints import bytes_of, is_datapoint, keys_of, values_of

    if is_datapoint(value) and len(value) <= _MANY and depth < _DEEP:
        for key, inner in zip(keys_of(value), values_of(value), strict=True):
            yield from _leaves(inner, f"{name}.{key}" if name else str(key), depth + 1)
        return
    kind, shape, text = _description(value)
    # `bytes_of` counts the characters of a string, which is faster but not exact.
    is_text = isinstance(value, str)
    nbytes = len(value.encode("utf-8", "surrogatepass")) if is_text else bytes_of(value)
    yield Component(name, kind, shape, text, nbytes)


def _description(value: Any) -> tuple[str, tuple[int, ...] | None, str]:
    import numpy as np

    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(cast("Any", value))
        return str(array.dtype), array.shape, _range(array)
    if isinstance(value, (list, tuple, dict)):
        return type(cast("object", value)).__name__, None, f"{len(cast('Any', value))} elements"
    if isinstance(value, (str, bytes)):
        return type(value).__name__, (len(value),), _quoted(value)
    text = repr(value)
    return type(value).__name__, None, text if len(text) <= _TEXT else text[:_TEXT] + "…"


def _quoted(value: str | bytes) -> str:
    shown = value[:_TEXT]
    while len(repr(shown)) > _TEXT + 3:  # a byte may take four characters
        shown = shown[:-1]
    return f"{shown!r}{'…' if shown != value else ''}"


def _range(array: np.ndarray[Any, Any]) -> str:
    import numpy as np

    if array.size == 0:
        return "empty"
    if array.dtype.kind not in "biuf":
        return repr(array.flat[0].item() if array.dtype.kind in "SU" else array.flat[0])[:_TEXT]
    nans = int(np.isnan(array).sum()) if array.dtype.kind == "f" else 0
    if nans == array.size:
        return "nan" if array.size == 1 else f"{nans:,} nan"
    low, high = (_number(bound(array)) for bound in (np.nanmin, np.nanmax))
    if low == high and not nans:
        return low if array.size == 1 else f"all {low}"
    return f"{low} … {high}, {nans:,} nan" if nans else f"{low} … {high}"


def _number(value: Any) -> str:
    return f"{float(value):.4g}" if value.dtype.kind == "f" else str(value)
