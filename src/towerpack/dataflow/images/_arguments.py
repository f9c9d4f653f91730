"""Checks of the arguments of augmentors, declared in the annotations of their attributes."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Annotated, Any, get_args, get_type_hints

import numpy as np

from towerpack._core.errors import ConfigError
from towerpack.dataflow._user_code import is_in_towerpack
from towerpack.dataflow.arguments import repr_of

Check = Callable[[Any, str], object]  # takes a value and its argument's name; raises `ConfigError`

INTERPOLATIONS = {"nearest": 0, "linear": 1, "cubic": 2, "area": 3, "lanczos": 4}
BORDERS = {"constant": 0, "replicate": 1, "reflect": 2, "wrap": 3, "reflect_101": 4}

_WHOLE = (int, np.integer)


def check_arguments(holder: object) -> None:
    """Run the checks that the annotations of an object's class declare for its attributes."""
    for name, check, optional in _checks(type(holder)):
        value = getattr(holder, name)
        if value is not None or not optional:
            check(value, name)


@cache
def _checks(cls: type[Any]) -> list[tuple[str, Check, bool]]:
    # Annotations in a user's class may contain names that only type checkers know.
    ours = next(base for base in cls.__mro__ if is_in_towerpack(base))
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
    """Create a check for `count` finite numbers in `least`..`greatest` and above `above`."""

    def fits(n: Any) -> bool:
        real = isinstance(n, kind) and math.isfinite(n)
        return real and bool(least <= n <= greatest and n > above)

    def check(value: Any, name: str) -> None:
        values = (value,) if count == 1 else pair_of(value)
        if not values or not all(map(fits, values)) or not (order is None or order(*values)):
            bounds = {f"above {above:g}": above, f"{least:g} or more": least}
            bounds[f"at most {greatest:g}"] = greatest
            finite = [text for text, bound in bounds.items() if math.isfinite(bound)]
            raise ConfigError(f"{name} must be {', '.join([form, *finite])}, got {repr_of(value)}.")

    return check


pair = partial(number, form="two numbers", count=2)
interval = partial(number, form="(lowest, highest)", count=2, order=operator.le)

whole_interval = partial(
    number, form="(low, high) of integers, low < high", count=2, order=operator.lt, kind=_WHOLE
)
"""Check for integers (low, high), of which `high` is excluded from the interval."""


def height_and_width(value: int | Sequence[int], name: str = "size") -> tuple[int, int]:
    """Convert an argument to (height, width). A single number stands for both."""
    size = (value, value) if isinstance(value, _WHOLE) else pair_of(value)
    if size is None or not all(isinstance(n, _WHOLE) and n > 0 for n in size):
        rule = "must be (height, width) in pixels, or one number for both, at least 1"
        raise ConfigError(f"{name} {rule}, got {value!r:.80}.")
    return int(size[0]), int(size[1])


def side_limits(value: int | tuple[int, int], name: str = "side") -> tuple[int, int]:
    """Convert an argument to the (least, greatest) length of a side. One number stands for both."""
    low, high = height_and_width(value, name)
    if low > high:
        raise ConfigError(f"{name} must be (least, greatest), got {repr_of(value)}.")
    return low, high


def constant_of(names: dict[str, int], value: int | str, argument: str = "constant") -> int:
    if value in names.values():
        return int(value)
    if value not in names:
        options = f"one of {', '.join(map(repr, names))}, or OpenCV's constant for it"
        raise ConfigError(f"{argument} must be {options}, got {value!r}.")
    return names[str(value)]


interpolation = partial(constant_of, INTERPOLATIONS)
border_mode = partial(constant_of, BORDERS)


def pair_of(value: Any) -> tuple[Any, Any] | None:
    try:
        first, second = value
    except (TypeError, ValueError):
        return None
    return first, second


Interpolation = Annotated[int | str, interpolation]
"""Constant of OpenCV (`cv2.INTER_LINEAR`), or its name in lower case (`"linear"`)."""

Border = Annotated[int | str, border_mode]
"""Constant of OpenCV (`cv2.BORDER_WRAP`), or its name in lower case (`"wrap"`)."""

Size = Annotated[int | tuple[int, int], height_and_width]
"""Tuple (height, width), or one number for both."""

Probability = Annotated[float, number(0, 1)]
Fractions = Annotated[tuple[float, float], interval(greatest=1, above=0)]
Factors = Annotated[tuple[float, float], interval(above=0)]
