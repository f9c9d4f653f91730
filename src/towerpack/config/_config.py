"""The base of all configurations, and its tree of keys."""

from __future__ import annotations

import pathlib
import re
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import pydantic

from towerpack._core.naming import in_one_spelling

T = TypeVar("T")


def _compiled(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"no regular expression: {error}") from error
    return text


Regex = Annotated[str, pydantic.AfterValidator(_compiled)]
"""A regular expression, as text."""


def _plain(name: str) -> str:
    return name if ":" in name else in_one_spelling(name)


Name = Annotated[str, "code", pydantic.AfterValidator(_plain)]
"""Name of an object in a registry: lower case, with underscores; or `module:attribute` as it is."""

NamesCode = Annotated[T, "code"]
"""A setting that may name code as `module:attribute` somewhere in its value."""

PathText = Annotated[str, "path"]
"""Path of a file or folder. A relative one in a YAML file starts at the folder of that file."""


class Config(pydantic.BaseModel):
    """A typed configuration. Unknown keys are errors, values are converted only where safe.

    A string below a field is its description:

        class Data(Config):
            batch_size: int = Field(64, ge=1)
            "Datapoints in a batch."
    """

    model_config = pydantic.ConfigDict(
        extra="forbid",
        validate_default=True,
        coerce_numbers_to_str=True,
        use_attribute_docstrings=True,
        protected_namespaces=(),
    )


@dataclass(frozen=True)
class Key:
    """A field of a configuration or of one of its sections.

    Attributes:
        path: Dotted path: `data.batch_size`.
        section: The configuration class, if the field is a section and not a value.
        free: Whether the field is a mapping with the user's keys.
        names_code: Whether its value may name code: `Name` and `NamesCode`.
        is_path: Whether the field is a `PathText` or a `pathlib.Path`, or is called `path`.
    """

    path: str
    description: str
    section: type[Config] | None
    free: bool
    names_code: bool
    is_path: bool


def keys_of(config: type[Config], prefix: str = "") -> Iterator[Key]:
    """All keys, sections before what is in them."""
    for name, field in config.model_fields.items():
        kinds = _kinds(field.annotation)
        section = next((k for k in kinds if isinstance(k, type) and issubclass(k, Config)), None)
        free = any(typing.get_origin(k) is dict or k is dict for k in kinds)
        marks = [m for kind in kinds for m in getattr(kind, "__metadata__", field.metadata)]
        path = name == "path" or "path" in marks or pathlib.Path in kinds
        about = field.description or ""
        yield Key(f"{prefix}{name}", about, section, free, "code" in marks, path)
        if section is not None:
            yield from keys_of(section, f"{prefix}{name}.")


def key_paths(config: type[Config]) -> list[str]:
    """Dotted paths of all values."""
    return [key.path for key in keys_of(config) if key.section is None]


def _kinds(annotation: Any) -> tuple[Any, ...]:
    union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    return typing.get_args(annotation) if union else (annotation,)
