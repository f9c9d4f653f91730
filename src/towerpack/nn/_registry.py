"""Registered layers, and the table in which `LinearWrap` finds them by name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from towerpack._core.errors import LayerError
from towerpack._core.naming import did_you_mean


class UnknownLayerError(LayerError, AttributeError):
    """There is no layer of this name."""


class RegisteredLayer:
    """A function over tensors that is called with a name first.

    Hashed by identity, so that two layers of one name cannot share argscopes.
    """

    def __init__(
        self, func: Callable[..., Any], call: Callable[..., Any], use_scope: bool | None
    ) -> None:
        functools.update_wrapper(self, func)
        self.name = func.__name__
        self.use_scope = use_scope
        self.func = func
        self._call = call
        # Arguments but for the input, which is the first.
        self.parameters = frozenset([*inspect.signature(func).parameters][1:])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Apply the layer; see `register_layer`."""
        return self._call(self, *args, **kwargs)

    def __repr__(self) -> str:
        return f"<layer {self.name}>"


_layers: dict[str, RegisteredLayer] = {}


def add(layer: RegisteredLayer, name: str | None = None) -> None:
    """Make a layer known to `LinearWrap`, by its own or another name.

    Raises:
        LayerError: Another module has registered this name.
    """
    name = name or layer.name
    known = _layers.get(name)
    if known is not None and known.__module__ != layer.__module__:
        raise LayerError(
            f"A layer '{name}' is registered already, in {known.__module__}.",
            fix="choose another name",
        )
    _layers[name] = layer


def has(name: str) -> bool:
    """Whether there is a layer of this name."""
    return name in _layers


def find(name: str) -> RegisteredLayer:
    """The layer of this name.

    Raises:
        LayerError: There is none.
    """
    if name not in _layers:
        raise UnknownLayerError(f"There is no layer '{name}'.", fix=did_you_mean(name, _layers))
    return _layers[name]
