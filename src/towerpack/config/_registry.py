from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar, cast

from towerpack._core.errors import ConfigError
from towerpack._core.naming import alike, did_you_mean

T = TypeVar("T")


class Registry(Generic[T]):
    """Registry of named objects. It also finds a user's objects by import path.

    Args:
        kind: Noun for error messages, such as 'network'.
        known: Object for each name, or its import path `module:attribute`, imported on first use.
        base: Base class that the registered classes must have; None for objects of other kinds.
    """

    def __init__(
        self, kind: str, known: Mapping[str, str | T], *, base: type | None = None
    ) -> None:
        self.kind, self._base = kind, base
        self._known: dict[str, str | T] = dict(known)

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def register(self, name: str, target: str | T) -> None:
        """Register an object.

        Args:
            name: New name.
            target: Object, or its import path `module:attribute`.

        Raises:
            ConfigError: The name is already registered.
        """
        if name in self._known:
            raise ConfigError(
                f"The {self.kind} '{name}' is already registered.", fix="choose a different name"
            )
        self._known[name] = target

    def get(self, spec: str | T) -> T:
        """Return the object with a name or import path.

        Args:
            spec: Name (case, `-` and `_` do not matter) or import path `module:attribute`. Any
                other object is returned unchanged.

        Raises:
            ConfigError: There is no such object, or it does not have the required base class.
        """
        if not isinstance(spec, str):
            return spec
        target = self._known[name] if (name := alike(spec, self)) else spec
        if not isinstance(target, str):
            return target
        module, colon, attribute = target.partition(":")
        if not colon:
            raise ConfigError(
                f"There is no {self.kind} '{spec}'.",
                expected=f"one of {', '.join(n for n in self if ':' not in n)}, or module:name",
                fix=did_you_mean(spec, self),
            )
        if names := [name for name in self if name.startswith(f"{module}:")]:
            raise ConfigError(f"There is no {self.kind} '{spec}'.", fix=did_you_mean(spec, names))
        if not all(part.isidentifier() for part in f"{module}.{attribute}".split(".")):
            raise ConfigError(
                f"{spec!r:.80} is not the name of a {self.kind}.", expected="module:name"
            )
        value = _attribute(self.kind, module, attribute)
        base = self._base
        if base and not (isinstance(value, type) and issubclass(value, base)):
            raise ConfigError(
                f"The {self.kind} {target} must be a subclass of {base.__name__}.",
                got=f"{value!r:.80}",
            )
        return cast("T", value)


def _attribute(kind: str, module: str, name: str) -> Any:
    if not module.startswith("towerpack.") and os.getcwd() not in sys.path:
        # Console scripts do not search the working directory. Append it: packages take priority.
        # Do so only for code of users: libraries also try to import packages that are missing.
        sys.path.append(os.getcwd())
    try:
        loaded = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise ConfigError(
            f"There is no module '{module}' for the {kind} '{module}:{name}'.",
            fix="run the command in the directory that holds the module",
        ) from error
    if not hasattr(loaded, name):
        raise ConfigError(
            f"The module '{module}' has no {kind} '{name}'.",
            fix=did_you_mean(name, [n for n in vars(loaded) if not n.startswith("_")]),
        )
    return getattr(loaded, name)
