"""Default arguments for layers, and the predecessors' spellings of arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from towerpack._core.errors import LayerError
from towerpack._core.naming import did_you_mean
from towerpack.nn._registry import RegisteredLayer

# Old spelling -> Keras word. Applied where a layer has the Keras word.
ALIASES = {
    "nl": "activation",
    "out_dim": "units",
    "out_channel": "filters",
    "kernel_shape": "kernel_size",
    "shape": "pool_size",
    "stride": "strides",
    "split": "groups",
    "W_init": "kernel_initializer",
    "b_init": "bias_initializer",
    "decay": "momentum",
}

_Defaults = Mapping[RegisteredLayer, Mapping[str, Any]]
_defaults: ContextVar[_Defaults] = ContextVar("argscope", default={})  # noqa: B039 - never mutated


@contextmanager
def argscope(
    layers: RegisteredLayer | Sequence[RegisteredLayer], **defaults: Any
) -> Iterator[None]:
    """Give arguments to every call of the layers inside; a call's own arguments win.

    Scopes nest; the inner one wins. An argument that a listed layer does not have is left out for
    that layer, but at least one of them must have it.

    Args:
        layers: Registered layers, such as `Conv2D` or `[Conv2D, FullyConnected]`.
        **defaults: Arguments by name, old spellings (`nl=`, `out_channel=`) included.

    Raises:
        LayerError: Not a registered layer, or an argument that none of them has.
    """
    chosen = list(layers) if isinstance(layers, Sequence) else [layers]
    for layer in chosen:
        if not isinstance(layer, RegisteredLayer):
            raise LayerError(
                f"argscope got {layer!r}, which is not a layer.",
                expected="registered layers such as Conv2D",
                fix="decorate the function with @register_layer",
            )
    for key in defaults:
        if not any(canonical(layer, key) in layer.parameters for layer in chosen):
            known = {name for layer in chosen for name in layer.parameters}
            raise LayerError(
                f"argscope: none of {[layer.name for layer in chosen]} has an argument '{key}'.",
                fix=did_you_mean(key, known),
            )
    merged = dict(_defaults.get())
    for layer in chosen:
        fitting = {canonical(layer, k): v for k, v in defaults.items()}
        fitting = {k: v for k, v in fitting.items() if k in layer.parameters}
        merged[layer] = {**merged.get(layer, {}), **fitting}
    token = _defaults.set(merged)
    try:
        yield
    finally:
        _defaults.reset(token)


def canonical(layer: RegisteredLayer, key: str) -> str:
    """The layer's own name for an argument that may be given in an old spelling."""
    word = ALIASES.get(key)
    return word if word and key not in layer.parameters and word in layer.parameters else key


def defaults_for(layer: RegisteredLayer) -> Mapping[str, Any]:
    """What the enclosing argscopes give to `layer`."""
    return _defaults.get().get(layer, {})
