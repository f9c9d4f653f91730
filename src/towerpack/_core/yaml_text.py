from typing import Any, Final

import yaml

_MOST_VALUES: Final = 100_000


def parse_yaml(text: str | bytes, kind: Any = yaml.SafeLoader) -> Any:
    """Return the value of a YAML text. Raise ValueError if the text is not valid or too large."""
    try:
        loader: Any = kind(text)
        node = loader.get_single_node()
        # Count nodes before values are created, because merge keys (`<<: *name`) multiply values.
        if _size(node, {}) > _MOST_VALUES:
            raise ValueError(f"more than {_MOST_VALUES:,} values")
        return None if node is None else loader.construct_document(node)
    except Exception as error:  # for example, a value does not match its tag
        raise ValueError(str(error)) from error


def _size(node: Any, known: dict[int, int]) -> int:
    """Return the number of values in a node. Values behind an alias count each time."""
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if id(node) not in known:
        known[id(node)] = _MOST_VALUES  # Value for a list that contains itself
        inner: Any = node.value
        pairs = isinstance(node, yaml.MappingNode)
        items = [item for pair in inner for item in pair] if pairs else inner
        known[id(node)] = 1 + sum(_size(item, known) for item in items)
    return known[id(node)]
