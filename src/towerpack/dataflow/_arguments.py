"""Arguments of a wrong type, refused where they are given rather than where they are used."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

from towerpack._core.errors import ConfigError


def integer_of(value: Any, name: str) -> int:
    """An argument that counts, as an integer of Python's; NumPy's are taken too.

    Args:
        value: What was given.
        name: Of the argument.

    Raises:
        ConfigError: It is no integer. `2.0` is none either: it comes from a division that will not
            always be even.
    """
    try:
        return operator.index(value)
    except TypeError:
        raise ConfigError(
            f"{name} is no integer.",
            got=given(value),
            expected="an integer",
            fix="divide with //, or convert it: int(...)",
        ) from None


def names_of(names: Iterable[str]) -> list[str]:
    """Names as a list; a string is one name, and not its letters."""
    return [names] if isinstance(names, str) else list(names)


def given(value: Any) -> str:
    """How messages show an argument: `2.5 (float)`."""
    return f"{value!r:.80} ({type(value).__name__})"
