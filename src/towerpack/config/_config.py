"""Base class of configurations, and functions that iterate over the keys."""

from __future__ import annotations

import pathlib
import re
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeVar, cast

import pydantic

from towerpack._core.naming import in_one_spelling

T = TypeVar("T")


def _compiled(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from error
    return pattern


Regex = Annotated[str, pydantic.AfterValidator(_compiled)]
"""Regular expression, as a string."""


def _normalized(name: str) -> str:
    return name if ":" in name else in_one_spelling(name)


Name = Annotated[str, "code", pydantic.AfterValidator(_normalized)]
"""Name in a registry, in lower case with underscores; or the import path `module:attribute`."""

NetworkName = Annotated[Name, "keras:"]
"""`Name` of a network. `keras:ConvNeXtTiny` names a network of Keras, not an import path."""

NamesCode = Annotated[T, "code"]
"""Setting whose value may contain import paths `module:attribute` of Python objects."""

PathText = Annotated[str, "path"]
"""Path of a file or folder. In a YAML file, a path is relative to the folder of that file."""


class Config(pydantic.BaseModel):
    """Base class of typed configurations. Unknown keys are errors.

    A string below a field describes the field. Subclasses inherit the description:

        class Data(Config):
            batch_size: int = Field(64, ge=1)
            "Datapoints in a batch."

    Attributes:
        old_keys: Current names of renamed fields, by old name. Both names work everywhere.
    """

    model_config = pydantic.ConfigDict(
        extra="forbid",
        validate_default=True,
        coerce_numbers_to_str=True,
        use_attribute_docstrings=True,
        protected_namespaces=(),
    )
    old_keys: ClassVar[Mapping[str, str]] = {}

    @pydantic.model_validator(mode="before")
    @classmethod
    def _accept_old_keys(cls, values: Any) -> Any:
        return with_current_keys(cls, values)


@dataclass(frozen=True)
class Key:
    """Field of a configuration or of one of its sections.

    Attributes:
        path: Dotted path of the key.
        old_path: Dotted path before the key was renamed; `path` if it was not.
        section: Class of the section; None for a value.
        free: Whether the value is a mapping whose keys the user chooses.
        namespaces: Prefixes of names that look like import paths but are in a registry.
    """

    path: str
    old_path: str
    description: str
    section: type[Config] | None
    free: bool
    names_code: bool
    namespaces: tuple[str, ...]
    is_path: bool


def keys_of(config: type[Config], prefix: str = "") -> Iterator[Key]:
    """Iterate over all keys of a configuration, each section before the keys in it."""
    old_names = {new: old for old, new in config.old_keys.items()}
    for name, field in config.model_fields.items():
        kinds, section = _kinds(field.annotation), _section_of(field)
        free = any(typing.get_origin(k) is dict or k is dict for k in kinds)
        marks = [m for kind in kinds for m in getattr(kind, "__metadata__", field.metadata)]
        is_path = name == "path" or "path" in marks or pathlib.Path in kinds
        old_path = f"{prefix}{old_names.get(name, name)}"
        about = _description(config, name) or ((section and section.__doc__) or "").split("\n")[0]
        namespaces = tuple(m for m in marks if isinstance(m, str) and m.endswith(":"))
        code = "code" in marks
        yield Key(f"{prefix}{name}", old_path, about, section, free, code, namespaces, is_path)
        if section is not None:
            yield from keys_of(section, f"{prefix}{name}.")


def key_paths(config: type[Config]) -> list[str]:
    """Return the dotted paths of all values of a configuration.

    Args:
        config: Class of the configuration.
    """
    return [key.path for key in keys_of(config) if key.section is None]


def with_current_keys(config: type[Config], values: Any) -> Any:
    """Return a copy of YAML values with old key names (`Config.old_keys`) replaced."""
    if not isinstance(values, Mapping):
        return values
    current: dict[str, Any] = {}
    for name, value in cast("Mapping[str, Any]", values).items():
        new = config.old_keys.get(name, name)
        name = name if new in values else new  # With both names, the old one is an unknown key.
        field = config.model_fields.get(name)
        section = None if field is None else _section_of(field)
        current[name] = value if section is None else with_current_keys(section, value)
    return current


def _description(config: type[Config], name: str) -> str:
    bases = (base for base in config.__mro__ if issubclass(base, Config))
    fields = (base.model_fields[name] for base in bases if name in base.model_fields)
    return " ".join(next((f.description for f in fields if f.description), "").split())


def _section_of(field: pydantic.fields.FieldInfo) -> type[Config] | None:
    kinds = (kind for kind in _kinds(field.annotation) if isinstance(kind, type))
    return next((kind for kind in kinds if issubclass(kind, Config)), None)


def _kinds(annotation: Any) -> tuple[Any, ...]:
    union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    return typing.get_args(annotation) if union else (annotation,)
