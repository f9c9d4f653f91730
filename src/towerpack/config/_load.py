"""Functions that read, check, change and compare configurations."""

from __future__ import annotations

import contextlib
import copy
import os
import re
import reprlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import pydantic

from towerpack._core.errors import ConfigError
from towerpack._core.naming import alike, did_you_mean
from towerpack._core.yaml_text import parse_yaml
from towerpack.config._config import Config, Key, keys_of, with_current_keys

C = TypeVar("C", bound=Config)
# Text that Python can import: neither a URL nor a path.
_CODE = re.compile(r"[^/]+:(?!/).*", re.DOTALL)


def read_yaml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a YAML file that contains a mapping.

    Args:
        path: Path of the file.

    Raises:
        ConfigError: The file cannot be read, is not YAML, or does not contain a mapping.
    """
    try:
        values = parse_yaml(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(
            f"{path} must contain a YAML mapping.",
            got=f"a {type(values).__name__}",
            expected="lines `key: value`",
        )
    return cast("dict[str, Any]", values)


def load(
    config: type[C], values: Mapping[str, Any], overrides: Sequence[str] = (), *, where: str
) -> C:
    """Create a configuration from YAML values and overrides, and validate it.

    Args:
        config: Class of the configuration.
        values: Values from YAML.
        overrides: Strings `key=value`, with the value in YAML. A key is a dotted path, or the
            last part of a path if that is unique. Later overrides win.
        where: Name of the YAML file for error messages.

    Raises:
        ConfigError: Keys are unknown or ambiguous, or values are invalid. Lists all of them.
    """
    merged = copy.deepcopy(with_current_keys(config, values))
    keys = list(keys_of(config))
    changed = [_parsed(override, keys) for override in overrides]
    for path, value in changed:
        _put(merged, path, value)
    try:
        return config.model_validate(merged)
    except pydantic.ValidationError as error:
        details = [_explain(fault, keys) for fault in error.errors()]
        overridden = tuple(path for path, _ in changed)
        raise ConfigError(
            "Some of the settings are invalid."
            if all(line.startswith(overridden) for line in details)
            else f"The configuration in {where} is invalid.",
            details="\n".join(details),
            fix="add --show-config to the command to see all keys and their meanings",
        ) from None


def from_folder(
    config: type[Config], values: Mapping[str, Any], folder: Path, names: Collection[str] = ()
) -> dict[str, Any]:
    """Return YAML values with relative paths resolved against the folder of the YAML file.

    A path that exists only relative to the working directory is not changed.

    Args:
        config: Class of the configuration.
        values: Values from YAML.
        folder: Folder of the YAML file.
        names: Names that are not paths, such as those of packaged weights.
    """
    changed = copy.deepcopy(with_current_keys(config, values))
    leaves = dict(_leaves(changed))
    for key in keys_of(config):
        value = leaves.get(key.path)
        if key.is_path and isinstance(value, str) and not value.startswith("~"):
            beside = folder.absolute() / value
            if beside.exists() or not (Path(value).exists() or alike(value, names)):
                _put(changed, key.path, os.path.normpath(beside))
    return changed


def code_in(config: type[Config], values: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the import paths (`module:attribute`) in YAML values, as a list for each dotted key.

    Args:
        config: Class of the configuration.
        values: Values from YAML.
    """
    values = with_current_keys(config, values)
    code: dict[str, list[str]] = {}
    for key in keys_of(config):
        if key.names_code:
            value: Any = values
            for name in key.path.split("."):
                value = cast("dict[str, Any]", value).get(name) if isinstance(value, dict) else None
            texts = [text for text in _texts(value) if not text.startswith(key.namespaces)]
            code[key.path] = [text for text in texts if _CODE.fullmatch(text)]
    return {path: names for path, names in code.items() if names}


def _texts(value: Any) -> Iterator[str]:
    """Iterate over the strings in a nested value, including the keys of mappings."""
    if isinstance(value, str | bytes):  # pydantic accepts bytes (`!!binary`) as text
        yield value if isinstance(value, str) else value.decode(errors="replace")
    elif isinstance(value, Mapping):
        for pair in cast("Mapping[Any, Any]", value).items():
            yield from _texts(pair)
    elif isinstance(value, list | tuple | set):
        for item in cast("Iterable[Any]", value):
            yield from _texts(item)


def change(config: C, **values: Any) -> C:
    """Return a copy of a configuration with changed values.

    Args:
        config: Configuration to copy.
        values: New values by dotted key: `change(config, **{"data.batch_size": 8})`.

    Raises:
        ConfigError: A key is unknown, or a value is invalid.
    """
    merged, keys = config.model_dump(), list(keys_of(type(config)))
    for name, value in values.items():
        _put(merged, _path_of(name, keys), value)
    return load(type(config), merged, where=type(config).__name__)


def differences(old: Config, new: Config) -> list[tuple[str, Any, Any]]:
    """Return the dotted keys whose values differ, each with the old and the new value.

    Paths that lead to the same file are equal. If the old file is missing, paths with the same
    file name are equal too, because the file was probably moved with its folder.

    Args:
        old: Earlier configuration.
        new: Later configuration.
    """
    paths = {key.path for key in keys_of(type(new)) if key.is_path}
    before, after = (dict(_leaves(c.model_dump(mode="json"))) for c in (old, new))
    names = [*before, *(name for name in after if name not in before)]
    rows = [(name, before.get(name), after.get(name)) for name in names]
    return [
        (name, first, second)
        for name, first, second in rows
        if first != second
        and not (name in paths and first and second and _is_same_file(first, second))
    ]


def _is_same_file(old: str, new: str) -> bool:
    before, after = Path(old).expanduser(), Path(new).expanduser()
    moved = before.name == after.name and not before.exists()
    return moved or before.resolve() == after.resolve()


def _parsed(override: str, keys: Sequence[Key]) -> tuple[str, Any]:
    name, equals, text = override.partition("=")
    if not equals or not name:
        raise ConfigError(f"{override!r} is not a setting.", expected="a setting key=value")
    try:
        value = parse_yaml(text)
    except ValueError as error:
        raise ConfigError(f"{name}: {text!r:.80} is not a YAML value: {error}") from error
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = float(value)  # YAML 1.1 reads 1e-3 as text.
    return _path_of(name, keys), value


def _path_of(name: str, keys: Sequence[Key]) -> str:
    known = {path: key.path for key in keys for path in (key.old_path, key.path)}
    if any(key.free and name.startswith(f"{key.path}.") for key in keys):
        return name
    if name in known:
        return known[name]
    matches = {known[path] for path in known if path.endswith(f".{name}")}
    if len(matches) == 1:
        return matches.pop()
    if matches:
        expected = f"one of {', '.join(sorted(matches))}"
        raise ConfigError(f"The key '{name}' is ambiguous.", expected=expected)
    last = {key.path.rpartition(".")[2] for key in keys if key.section is None}
    names = known if "." in name else {*known, *last}
    raise ConfigError(f"There is no key '{name}'.", fix=did_you_mean(name, sorted(names)))


def _put(values: dict[str, Any], path: str, value: Any) -> None:
    *sections, last = path.split(".")
    for section in sections:
        inner = values.get(section)
        values[section] = inner if isinstance(inner, dict) else {}
        values = values[section]
    values[last] = value


def _explain(error: Any, keys: Sequence[Key]) -> str:
    path = ".".join(str(part) for part in error["loc"] if part != "[key]")
    if error["type"] == "extra_forbidden":
        section, _, name = path.rpartition(".")
        parts = (key.path.rpartition(".") for key in keys)
        siblings = [last for parent, _, last in parts if parent == section]
        return f"{path}: there is no such key. {did_you_mean(name, siblings)}"
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
