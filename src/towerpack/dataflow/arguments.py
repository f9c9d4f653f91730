"""Checks of arguments, called by constructors so that errors appear early."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

from towerpack._core.errors import ConfigError


def integer_of(value: Any, name: str, least: int | None = None) -> int:
    """Convert an integer argument, such as a NumPy integer, to a Python integer.

    Raises:
        ConfigError: The value is too small or not an integer. Floats such as `2.0` are rejected
            too, because they come from divisions whose results are not always whole.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise ConfigError(
            f"{name} must be an integer, got {repr_of(value)}.",
            fix="divide with //, or convert the value with int(...)",
        ) from None
    if least is not None and number < least:
        raise ConfigError(f"{name} must be at least {least}, got {number}.")
    return number


def check_choice(value: object, name: str, choices: Iterable[str]) -> None:
    *names, last = (f'"{choice}"' for choice in choices)
    if f'"{value}"' not in (*names, last):
        raise ConfigError(f"{name} must be {', '.join(names)} or {last}, got {value!r}.")


def names_of(names: Iterable[str]) -> list[str]:
    """Return names as a list. A single string is one name."""
    return [names] if isinstance(names, str) else list(names)


def repr_of(value: Any) -> str:
    """Return a shortened value and its type, for error messages."""
    return f"{value!r:.80} ({type(value).__name__})"
