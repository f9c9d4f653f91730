"""Checks of arguments, made where the arguments are passed rather than where they are used."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

from towerpack._core.errors import ConfigError


def integer_of(value: Any, name: str, least: int | None = None) -> int:
    """Return an argument as a Python integer. NumPy integers are accepted, floats are not.

    Raises:
        ConfigError: The value is too small or not an integer. `2.0` is refused too: it comes from a
            division whose result is not always whole.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise ConfigError(
            f"{name} must be an integer, got {repr_of(value)}.",
            fix="divide with // or convert the value with int(...)",
        ) from None
    if least is not None and number < least:
        raise ConfigError(f"{name} must be at least {least}, got {number}.")
    return number


def check_choice(value: object, name: str, choices: Iterable[str]) -> None:
    *names, last = (f'"{choice}"' for choice in choices)
    if f'"{value}"' not in (*names, last):
        raise ConfigError(f"{name} must be {', '.join(names)} or {last}, got {value!r}.")


def names_of(names: Iterable[str]) -> list[str]:
    """Return names as a list. A string is one name, not a sequence of letters."""
    return [names] if isinstance(names, str) else list(names)


def repr_of(value: Any) -> str:
    """Return a value and its type, shortened, for the `got` of an error."""
    return f"{value!r:.80} ({type(value).__name__})"
