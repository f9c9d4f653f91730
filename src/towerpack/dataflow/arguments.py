"""Arguments of a wrong type, refused where they are given rather than where they are used."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

from towerpack._core.errors import ConfigError


def integer_of(value: Any, name: str, least: int | None = None) -> int:
    """An argument that counts, as an integer of Python's; NumPy's are taken too.

    Raises:
        ConfigError: It is too small, or no integer. `2.0` is none either: it comes from a division
            that will not always be even.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise ConfigError(
            f"{name} is no integer.",
            got=given(value),
            expected="an integer",
            fix="divide with //, or convert it: int(...)",
        ) from None
    if least is not None and number < least:
        raise ConfigError(f"{name} is {number}.", expected=f"{least} or more")
    return number


def names_of(names: Iterable[str]) -> list[str]:
    """Names as a list; a string is one name, and not its letters."""
    return [names] if isinstance(names, str) else list(names)


def given(value: Any) -> str:
    """Return a value and its type, shortened, for the `got` of an error."""
    return f"{value!r:.80} ({type(value).__name__})"
