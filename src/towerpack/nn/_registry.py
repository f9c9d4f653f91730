"""Registered layers, and the table in which `LinearWrap` finds them by name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from towerpack._core.errors import LayerError


class RegisteredLayer:
    """Layer that is called with a name first. It is hashed by identity, also in argscopes."""

    def __init__(
        self, func: Callable[..., Any], call: Callable[..., Any], use_scope: bool | None
    ) -> None:
        functools.update_wrapper(self, func)
        self.name = func.__name__
        self.use_scope = use_scope
        self.func = func
        self._call = call
        # All arguments but the first one, which is the input.
        self.parameters = frozenset([*inspect.signature(func).parameters][1:])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Apply the layer; see `register_layer`."""
        return self._call(self, *args, **kwargs)

    def __repr__(self) -> str:
        return f"<layer {self.name}>"


LAYERS: dict[str, RegisteredLayer] = {}


def add(layer: RegisteredLayer, name: str | None = None) -> None:
    """Register a layer by its own or another name, and refuse a name of another module."""
    name = name or layer.name
    known = LAYERS.get(name)
    if known is not None and known.__module__ != layer.__module__:
        raise LayerError(
            f"A layer '{name}' is registered already, in {known.__module__}.",
            fix="choose another name",
        )
    LAYERS[name] = layer
