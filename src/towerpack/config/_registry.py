"""Things by name: those of the package, and a user's own."""

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
    """Objects by name. Modules are imported on first use.

    Args:
        kind: Noun for errors: 'network'.
        known: Name → `module:attribute`, or the object itself.
        base: Base class of the registered classes; None for other objects.
    """

    def __init__(
        self, kind: str, known: Mapping[str, str | T], *, base: type | None = None
    ) -> None:
        self.kind, self._base = kind, base
        self._known: dict[str, str | T] = dict(known)

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def register(self, name: str, found: str | T) -> None:
        """Add a name.

        Raises:
            ConfigError: It is taken.
        """
        if name in self._known:
            raise ConfigError(f"There is a {self.kind} '{name}' already.", fix="another name")
        self._known[name] = found

    def get(self, spec: str | T) -> T:
        """Return the object of a name, of `module:attribute`, or the object itself.

        Names are the same if they differ only in case, `-` and `_`.

        Raises:
            ConfigError: There is none, or it is of another kind.
        """
        if not isinstance(spec, str):
            return spec
        found = self._known[name] if (name := alike(spec, self)) else spec
        if not isinstance(found, str):
            return found
        module, colon, attribute = found.partition(":")
        if not colon:
            raise ConfigError(
                f"There is no {self.kind} '{spec}'.",
                expected=f"one of {', '.join(self)}, or module:name",
                fix=did_you_mean(spec, self),
            )
        if not all(part.isidentifier() for part in f"{module}.{attribute}".split(".")):
            raise ConfigError(f"{spec!r:.80} names no {self.kind}.", expected="module:name")
        value = _attribute(self.kind, module, attribute)
        base = self._base
        if base and not (isinstance(value, type) and issubclass(value, base)):
            raise ConfigError(
                f"{found} is no {self.kind}.",
                got=f"{value!r:.80}",
                expected=f"a class derived from {base.__name__}",
            )
        return cast("T", value)


def _attribute(kind: str, module: str, name: str) -> Any:
    if os.getcwd() not in sys.path:
        # Console scripts do not look there. Last, so that no file there replaces a package.
        sys.path.append(os.getcwd())
    try:
        loaded = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise ConfigError(
            f"There is no module '{module}' for the {kind} '{module}:{name}'.",
            fix="run it in the directory that holds the module",
        ) from error
    if not hasattr(loaded, name):
        raise ConfigError(
            f"The module '{module}' has no {kind} '{name}'.",
            fix=did_you_mean(name, [n for n in vars(loaded) if not n.startswith("_")]),
        )
    return getattr(loaded, name)
