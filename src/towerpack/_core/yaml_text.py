"""YAML that may come from others."""

from __future__ import annotations

from typing import Any, Final, cast

import yaml

_MOST_VALUES: Final = 100_000


def parse_yaml(text: str | bytes) -> Any:
    """Return the value of a text in YAML.

    Raises:
        ValueError: It is no YAML, or far larger than a configuration is.
    """
    try:
        value = yaml.safe_load(text)
        if _size(value, {}) > _MOST_VALUES:
            raise ValueError(f"more than {_MOST_VALUES:,} values")
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(str(error)) from error
    return value


def _size(value: Any, known: dict[int, int]) -> int:
    """The number of values; what is named again by an alias counts each time."""
    items: Any = value
    if isinstance(value, dict):
        items = [*cast("dict[Any, Any]", value), *cast("dict[Any, Any]", value).values()]
    elif not isinstance(value, list):
        return 1
    key = id(cast("object", value))
    if key not in known:
        known[key] = _MOST_VALUES  # of a list that holds itself
        known[key] = 1 + sum(_size(item, known) for item in items)
    return known[key]
