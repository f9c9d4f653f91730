"""Registered layers, and the table in which `LinearWrap` finds them."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from towerpack._core.errors import LayerError


class RegisteredLayer:
    """Layer that is called with its name as first argument, created by `register_layer`.

    Args:
        func: Function whose first argument is the input.
        call: Called with the layer and its arguments to apply the layer.
        use_scope: Whether the layer takes a name; see `register_layer`.
    """

    def __init__(
        self, func: Callable[..., Any], call: Callable[..., Any], use_scope: bool | None
    ) -> None:
        functools.update_wrapper(self, func)
        self.name = func.__name__
        self.use_scope = use_scope
        self.func = func
        self._call = call
        # All arguments except the input.
        self.parameters = frozenset([*inspect.signature(func).parameters][1:])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Apply the layer: `layer('name', x, …)`."""
        return self._call(self, *args, **kwargs)

    def __repr__(self) -> str:
        return f"<layer {self.name}>"


LAYERS: dict[str, RegisteredLayer] = {}


def add(layer: RegisteredLayer, name: str | None = None) -> None:
    """Register a layer by its name or `name`. Raise `LayerError` if another module uses it."""
    name = name or layer.name
    known = LAYERS.get(name)
    if known is not None and known.__module__ != layer.__module__:
        raise LayerError(
            f"The layer name '{name}' is already registered in {known.__module__}.",
            fix="choose another name",
        )
    LAYERS[name] = layer
