"""Arguments that are numbers, or ranges of them, refused where they are given."""

from __future__ import annotations

import math
import numbers
from typing import Any

from towerpack._core.errors import ConfigError
from towerpack.dataflow._arguments import given, integer_of


def check_number(
    value: Any, name: str, least: float = -math.inf, greatest: float = math.inf
) -> None:
    """Refuse what is no finite number from `least` to `greatest`.

    Raises:
        ConfigError: It is none.
    """
    if not _is_number(value) or not least <= value <= greatest:
        raise ConfigError(
            f"{name} is {given(value)}.", expected="a number" + _bounds(least, greatest)
        )


def check_range(
    value: Any,
    name: str,
    least: float = -math.inf,
    greatest: float = math.inf,
    *,
    above: float = -math.inf,
) -> None:
    """Refuse what is no (lowest, highest) of finite numbers.

    Args:
        value: What was given.
        name: Of the argument.
        least: That `lowest` may be.
        greatest: That `highest` may be.
        above: What `lowest` must be greater than.

    Raises:
        ConfigError: It is none.
    """
    low, high = pair_of(value) or (math.nan, math.nan)
    if not (_is_number(low) and _is_number(high) and least <= low <= high <= greatest) or (
        low <= above
    ):
        bounds = f", above {above:g}" if above > -math.inf else ""
        raise ConfigError(
            f"{name} is {given(value)}.",
            expected="(lowest, highest)" + bounds + _bounds(least, greatest),
            fix="(x, x) is always x",
        )


def check_pair(value: Any, name: str, least: float = -math.inf) -> None:
    """Refuse what is not two finite numbers, such as one for x and one for y.

    Raises:
        ConfigError: It is not.
    """
    pair = pair_of(value)
    if pair is None or not all(_is_number(one) and one >= least for one in pair):
        raise ConfigError(
            f"{name} is {given(value)}.", expected="two numbers" + _bounds(least, math.inf)
        )


def check_whole_range(value: Any, name: str, least: int, greatest: float = math.inf) -> None:
    """Refuse what is no (low, high) of whole numbers, high being the first that is not meant.

    Raises:
        ConfigError: It is none.
    """
    pair = pair_of(value)
    low, high = (integer_of(one, f"A number of {name}") for one in pair or (0, 0))
    if pair is None or not least <= low < high <= greatest:
        raise ConfigError(
            f"{name} is {given(value)}.",
            expected="(low, high), low < high" + _bounds(least, greatest),
            fix="(n, n + 1) is always n",
        )


def pair_of(value: Any) -> tuple[Any, Any] | None:
    """Two values as a tuple; `None` if there are not two."""
    try:
        one, other = value
    except (TypeError, ValueError):
        return None
    return one, other


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and math.isfinite(value)


def _bounds(least: float, greatest: float) -> str:
    if greatest < math.inf:
        return f", from {least:g} to {greatest:g}" if least > -math.inf else f", up to {greatest:g}"
    return f", {least:g} or more" if least > -math.inf else ""
