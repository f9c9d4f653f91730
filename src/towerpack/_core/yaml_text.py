"""YAML that may come from others."""

from __future__ import annotations

from typing import Any, Final

import yaml

_MOST_VALUES: Final = 100_000
_compose: Any = getattr(yaml, "compose")  # noqa: B009 - has no types


def parse_yaml(text: str | bytes) -> Any:
    """Return the value of a text in YAML.

    Raises:
        ValueError: It is no YAML, or far larger than a configuration is.
    """
    try:
        # Before values are made: merge keys (`<<: *a`) multiply them.
        if _size(_compose(text, yaml.SafeLoader), {}) > _MOST_VALUES:
            raise ValueError(f"more than {_MOST_VALUES:,} values")
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(str(error)) from error


def _size(node: Any, known: dict[int, int]) -> int:
    """The number of values of a node; what is named again by an alias counts each time."""
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if id(node) not in known:
        known[id(node)] = _MOST_VALUES  # of a list that holds itself
        inner: Any = node.value
        pairs = isinstance(node, yaml.MappingNode)
        items = [item for pair in inner for item in pair] if pairs else inner
        known[id(node)] = 1 + sum(_size(item, known) for item in items)
    return known[id(node)]
