"""Arguments of augmentors, checked where they are given: annotations say what each may be."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Annotated, Any, get_args, get_type_hints

import numpy as np

from towerpack._core.errors import ConfigError
from towerpack.dataflow._user_code import is_ours
from towerpack.dataflow.arguments import given

Check = Callable[[Any, str], object]  # raises `ConfigError` for a value and its argument's name

INTERPOLATIONS = {"nearest": 0, "linear": 1, "cubic": 2, "area": 3, "lanczos": 4}
BORDERS = {"constant": 0, "replicate": 1, "reflect": 2, "wrap": 3, "reflect_101": 4}

_WHOLE = (int, np.integer)


def check_arguments(holder: object) -> None:
    """Refuse arguments that are not what the annotations of their attributes say."""
    for name, check, optional in _checks(type(holder)):
        value = getattr(holder, name)
        if value is not None or not optional:
            check(value, name)


@cache
def _checks(cls: type[Any]) -> list[tuple[str, Check, bool]]:
    # Annotations of the user's may be of names that are known to type checkers only.
    ours = next(base for base in cls.__mro__ if is_ours(base))
    hints = get_type_hints(ours, include_extras=True)
    return [
        (name, check, type(None) in get_args(hint.__origin__))
        for name, hint in hints.items()
        for check in getattr(hint, "__metadata__", ())
    ]


def number(
    least: float = -math.inf,
    greatest: float = math.inf,
    above: float = -math.inf,
    *,
    form: str = "a number",
    count: int = 1,
    order: Callable[[Any, Any], bool] | None = None,
    kind: Any = numbers.Real,
) -> Check:
    """The check for a finite number from `least` to `greatest`, and above `above`."""

    def fits(n: Any) -> bool:
        real = isinstance(n, kind) and math.isfinite(n)
        return real and bool(least <= n <= greatest and n > above)

    def check(value: Any, name: str) -> None:
        found = (value,) if count == 1 else pair_of(value)
        if not found or not all(map(fits, found)) or not (order is None or order(*found)):
            bounds = {f"above {above:g}": above, f"{least:g} or more": least}
            bounds[f"at most {greatest:g}"] = greatest
            finite = [text for text, bound in bounds.items() if math.isfinite(bound)]
            raise ConfigError(f"{name} is {given(value)}.", expected=", ".join([form, *finite]))

    return check


pair = partial(number, form="two numbers", count=2)
interval = partial(number, form="(lowest, highest)", count=2, order=operator.le)

whole_interval = partial(
    number, form="(low, high) of integers, low < high", count=2, order=operator.lt, kind=_WHOLE
)
"""The check for (low, high) of whole numbers, `high` being the first that is not meant."""


def height_and_width(value: int | Sequence[int], name: str = "size") -> tuple[int, int]:
    """An argument that is a (height, width), or one number for both, or a `ConfigError`."""
    two = (value, value) if isinstance(value, _WHOLE) else pair_of(value)
    if two is None or not all(isinstance(n, _WHOLE) and n > 0 for n in two):
        expected = "(height, width), or one number for both; 1 or more"
        raise ConfigError(f"{value!r:.80} is no {name}.", expected=expected)
    return int(two[0]), int(two[1])


def side_limits(value: int | tuple[int, int], name: str = "side") -> tuple[int, int]:
    """An argument that is the (least, greatest) length of a side, or one number for both."""
    low, high = height_and_width(value, name)
    if low > high:
        raise ConfigError(f"{name} is {given(value)}.", expected="(least, greatest)")
    return low, high


def constant_of(names: dict[str, int], value: int | str, what: str = "constant") -> int:
    """OpenCV's number of what may be given by name, or a `ConfigError`."""
    if value in names.values():
        return int(value)
    if value not in names:
        expected = f"one of {', '.join(map(repr, names))}, or OpenCV's constant for it"
        raise ConfigError(f"There is no {what} {value!r}.", expected=expected)
    return names[str(value)]


interpolation = partial(constant_of, INTERPOLATIONS)
border_mode = partial(constant_of, BORDERS)


def pair_of(value: Any) -> tuple[Any, Any] | None:
    """Two values as a tuple; `None` if there are not two."""
    try:
        one, other = value
    except (TypeError, ValueError):
        return None
    return one, other


Interpolation = Annotated[int | str, interpolation]
"""A constant of OpenCV (`cv2.INTER_LINEAR`), or its name in lower case (`"linear"`)."""

Border = Annotated[int | str, border_mode]
"""A constant of OpenCV (`cv2.BORDER_WRAP`), or its name in lower case (`"wrap"`)."""

Size = Annotated[int | tuple[int, int], height_and_width]
"""(height, width), or one number for both."""

Probability = Annotated[float, number(0, 1)]
Fractions = Annotated[tuple[float, float], interval(greatest=1, above=0)]
Factors = Annotated[tuple[float, float], interval(above=0)]
