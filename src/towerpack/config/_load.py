"""From YAML and `key=value` to a checked configuration."""

from __future__ import annotations

import contextlib
import copy
import os
import re
import reprlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import pydantic

from towerpack._core.errors import ConfigError
from towerpack._core.naming import alike, did_you_mean
from towerpack._core.yaml_text import parse_yaml
from towerpack.config._config import Config, Key, keys_of

C = TypeVar("C", bound=Config)
# What Python can import; neither URLs nor paths.
_CODE = re.compile(r"[^/]+:(?!/).*", re.DOTALL)


def read_yaml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The mapping in a YAML file.

    Raises:
        ConfigError: It cannot be read, is no YAML, or no mapping.
    """
    try:
        values = parse_yaml(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise ConfigError(f"{path} is no YAML: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(
            f"{path} holds no configuration.",
            got=f"a {type(values).__name__}",
            expected="lines `key: value`",
        )
    return cast("dict[str, Any]", values)


def load(
    config: type[C], values: Mapping[str, Any], overrides: Sequence[str] = (), *, where: str
) -> C:
    """Check a configuration.

    Args:
        config: Class of the configuration.
        values: Values from YAML.
        overrides: `key=value`, the value in YAML. A key is dotted (`data.batch_size`), or its last
            part if no other key ends with it (`batch_size`). Later overrides win.
        where: Name of the file, for errors.

    Raises:
        ConfigError: A key is unknown or ambiguous, or a value does not fit. Lists all of them.
    """
    merged = copy.deepcopy(dict(values))
    keys = list(keys_of(config))
    changed = [_parsed(override, keys) for override in overrides]
    for path, value in changed:
        _put(merged, path, value)
    try:
        return config.model_validate(merged)
    except pydantic.ValidationError as error:
        details = [_told(found, keys) for found in error.errors()]
        theirs = tuple(path for path, _ in changed)
        raise ConfigError(
            "These settings do not fit."
            if all(told.startswith(theirs) for told in details)
            else f"The configuration of {where} does not fit.",
            details="\n".join(details),
            fix="`--show-config` shows all keys with what they mean",
        ) from None


def from_folder(
    config: type[Config], values: Mapping[str, Any], folder: Path, names: Collection[str] = ()
) -> dict[str, Any]:
    """Return values from a YAML file with relative paths taken from the folder of the file.

    A path that exists only in the working directory is kept, as are `names`.
    """
    changed, leaves = copy.deepcopy(dict(values)), dict(_leaves(values))
    for key in keys_of(config):
        value = leaves.get(key.path)
        if key.is_path and isinstance(value, str) and not value.startswith("~"):
            beside = folder.absolute() / value
            if beside.exists() or not (Path(value).exists() or alike(value, names)):
                _put(changed, key.path, os.path.normpath(beside))
    return changed


def code_in(config: type[Config], values: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return each `module:attribute` that values from a file name, by the dotted key."""
    found: dict[str, list[str]] = {}
    for key in keys_of(config):
        if key.names_code:
            value: Any = values
            for name in key.path.split("."):
                value = cast("dict[str, Any]", value).get(name) if isinstance(value, dict) else None
            found[key.path] = [text for text in _texts(value) if _CODE.fullmatch(text)]
    return {path: names for path, names in found.items() if names}


def _texts(value: Any) -> Iterator[str]:
    """Texts in a value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for pair in cast("Mapping[Any, Any]", value).items():
            yield from _texts(pair)
    elif isinstance(value, list | tuple):
        for item in cast("Sequence[Any]", value):
            yield from _texts(item)


def change(config: C, **values: Any) -> C:
    """A copy with other values of dotted keys: `change(c, **{'data.batch_size': 8})`.

    Raises:
        ConfigError: As `load`.
    """
    merged = config.model_dump()
    for path, value in values.items():
        _put(merged, path, value)
    return load(type(config), merged, where=type(config).__name__)


def differences(old: Config, new: Config) -> list[tuple[str, Any, Any]]:
    """Return the dotted keys whose values differ, with both values.

    Paths of the same file are equal, and so are those of a file that was moved with its folder.
    """
    paths = {key.path for key in keys_of(type(new)) if key.is_path}
    before, after = (dict(_leaves(c.model_dump(mode="json"))) for c in (old, new))
    names = [*before, *(name for name in after if name not in before)]
    pairs = [(name, before.get(name), after.get(name)) for name in names]
    return [
        (name, one, other)
        for name, one, other in pairs
        if one != other and not (name in paths and one and other and _is_same_file(one, other))
    ]


def _is_same_file(old: str, new: str) -> bool:
    before, after = Path(old).expanduser(), Path(new).expanduser()
    moved = before.name == after.name and not before.exists()
    return moved or before.resolve() == after.resolve()


def _parsed(override: str, keys: Sequence[Key]) -> tuple[str, Any]:
    name, equals, text = override.partition("=")
    if not equals or not name:
        raise ConfigError(f"{override!r} is no setting.", expected="key=value")
    try:
        value = parse_yaml(text)
    except ValueError as error:
        raise ConfigError(f"{name}: {text!r:.80} is no value in YAML: {error}") from error
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = float(value)  # YAML 1.1 takes 1e-3 for a word.
    return _path_of(name, keys), value


def _path_of(name: str, keys: Sequence[Key]) -> str:
    known = {key.path for key in keys}
    inside = any(key.free and name.startswith(f"{key.path}.") for key in keys)
    if name in known or inside:
        return name
    ending = [path for path in known if path.endswith(f".{name}")]
    if len(ending) == 1:
        return ending[0]
    if ending:
        raise ConfigError(
            f"'{name}' may mean several keys.", expected=f"one of {', '.join(sorted(ending))}"
        )
    last = {key.path.rpartition(".")[2]: key.path for key in keys if key.section is None}
    names = known if "." in name else {*known, *last}
    raise ConfigError(f"There is no key '{name}'.", fix=did_you_mean(name, sorted(names)))


def _put(values: dict[str, Any], path: str, value: Any) -> None:
    *sections, last = path.split(".")
    for section in sections:
        inner = values.get(section)
        values[section] = inner if isinstance(inner, dict) else {}
        values = values[section]
    values[last] = value


def _told(error: Any, keys: Sequence[Key]) -> str:
    path = ".".join(str(part) for part in error["loc"] if part != "[key]")
    if error["type"] == "extra_forbidden":
        section, _, name = path.rpartition(".")
        beside = [
            key.path.rpartition(".")[2] for key in keys if key.path.rpartition(".")[0] == section
        ]
        return f"{path}: no such key. {did_you_mean(name, beside)}"
    got = "" if error["type"] == "missing" else f", got {reprlib.repr(error['input'])}"
    if error["type"] in ("tuple_type", "list_type"):
        items = re.split(r"[,\s]+|(?<=\d)x(?=\d)", str(error["input"]).strip("() "))
        items *= 2 if error["type"] == "tuple_type" and len(items) == 1 else 1
        got += f"; write {path}=[{','.join(items)}]"
    return f"{path}: {error['msg']}{got}"


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from _leaves(cast("dict[str, Any]", value), f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
