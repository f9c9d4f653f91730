"""YAML that may come from others."""

from __future__ import annotations

from typing import Any, Final

import yaml

_MOST_VALUES: Final = 100_000


def parse_yaml(text: str | bytes, kind: Any = yaml.SafeLoader) -> Any:
    """Return the value of a text in YAML; raise ValueError if the text is none, or too large."""
    try:
        loader: Any = kind(text)
        node = loader.get_single_node()
        # Nodes are counted before values are made, since merge keys (`<<: *name`) multiply values.
        if _size(node, {}) > _MOST_VALUES:
            raise ValueError(f"more than {_MOST_VALUES:,} values")
        return None if node is None else loader.construct_document(node)
    except (
        *(yaml.YAMLError, RecursionError),
        *(LookupError, AttributeError, ArithmeticError),  # of values that are not of their tag
    ) as error:
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
