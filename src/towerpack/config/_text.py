from __future__ import annotations

from typing import Any, cast

import yaml

from towerpack.config._config import Config, keys_of

_COLUMN = 44


def to_yaml(config: Config) -> str:
    """Return a configuration as YAML text that `load` accepts.

    Args:
        config: Configuration to write.
    """
    return yaml.safe_dump(
        config.model_dump(mode="json"), sort_keys=False, allow_unicode=True, default_flow_style=None
    )


def explained(config: Config) -> str:
    """Return a configuration as YAML text, with a comment that describes each key.

    Args:
        config: Configuration to write.
    """
    values = config.model_dump(mode="json")
    lines: list[str] = []
    for key in keys_of(type(config)):
        *sections, name = key.path.split(".")
        value: Any = values
        for section in sections:
            value = cast("dict[str, Any]", value or {}).get(section)
        if value is None:
            continue  # A section that is None has no keys.
        indent = "  " * len(sections)
        inner = value.get(name)
        shown = "" if key.section is not None and inner is not None else f" {_flow(inner)}"
        line = f"{indent}{name}:{shown}"
        lines.append(f"{line:<{_COLUMN}} # {key.description}" if key.description else line)
    return "\n".join(lines) + "\n"


def _flow(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")
