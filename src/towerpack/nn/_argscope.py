"""Default arguments for layers, and old spellings of arguments."""

import functools
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any

import keras

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
    "dim": "axis",
}
# Arguments of Tensorpack's layers without a successor.
_INSTEAD = {
    "ema_update": "leave out ema_update; training=False freezes the moving averages",
    "use_affine": "write center=False, scale=False",
    "keep_prob": "write rate=, the share to drop: 1 - keep_prob",
    "activity_regularizer": "add the term of the layer's output to the cost",
}

Layer = RegisteredLayer | type[keras.layers.Layer]
_Defaults = Mapping[Layer, Mapping[str, Any]]
_defaults: ContextVar[_Defaults] = ContextVar("argscope", default={})  # noqa: B039 - never mutated


@contextmanager
def argscope(
    layers: Layer | ModuleType | Sequence[Layer | ModuleType], **defaults: Any
) -> Iterator[None]:
    """Set default arguments for every call of the layers inside the scope.

        with argscope([Conv2D, FullyConnected], activation=tf.nn.relu):
            x = Conv2D('conv0', x, 32, 3)  # with ReLU

    Arguments of the call take priority, then those of the innermost scope. A listed layer ignores
    defaults for arguments that it does not have.

    For a Keras class, the defaults apply to layers of exactly this class that are created inside.
    The first scope over a class wraps its constructor for the rest of the process. Outside of
    scopes nothing changes.

    Args:
        layers: Registered layers such as `Conv2D`, Keras classes such as `keras.layers.Conv2D`, or
            a list of them. A module, such as `keras.layers`, stands for its layers that have one of
            the arguments.
        **defaults: Arguments by name. Old spellings (`nl=`, `out_channel=`) work.

    Raises:
        LayerError: None of the layers has one of the arguments, or an item is not a layer.
    """
    listed = list(layers) if isinstance(layers, Sequence) else [layers]
    chosen = [layer for item in listed for layer in _layers_of(item, defaults)]
    parameters = {layer: _parameters(layer) for layer in chosen}
    for key in defaults:
        if not any(canonical(names, key) in names for names in parameters.values()):
            raise LayerError(
                f"argscope: none of {[c.__name__ for c in chosen]} has an argument '{key}'.",
                fix=instead_of(key, frozenset().union(*parameters.values()), ".*"),
            )
    merged = dict(_defaults.get())
    for layer, names in parameters.items():
        fitting = {canonical(names, k): v for k, v in defaults.items()}
        fitting = {k: v for k, v in fitting.items() if k in names}
        merged[layer] = {**merged.get(layer, {}), **fitting}
    token = _defaults.set(merged)
    try:
        yield
    finally:
        _defaults.reset(token)


def canonical(parameters: frozenset[str], key: str) -> str:
    """Return the current spelling of an argument, or `key` itself."""
    word = ALIASES.get(key)
    return word if word and key not in parameters and word in parameters else key


def instead_of(key: str, parameters: frozenset[str], name: str) -> str | None:
    """Return advice on an argument that the layer `name` does not have, or None."""
    if key in ("kernel_regularizer", "bias_regularizer"):
        weights = f"{name}/{key.removesuffix('_regularizer')}"
        return f"add regularize_cost('{weights}', l2_regularizer(1e-4)) to the cost"
    return _INSTEAD.get(key) or did_you_mean(key, parameters)


def defaults_for(layer: Layer) -> Mapping[str, Any]:
    return _defaults.get().get(layer, {})


def _layers_of(item: Any, defaults: Mapping[str, Any]) -> list[Any]:
    """Return the layer in a list, or the layers of a module that have one of the arguments."""
    if not isinstance(item, ModuleType):
        return [item]

    def fits(layer: Any) -> bool:
        if isinstance(layer, RegisteredLayer):
            names = layer.parameters
        elif _is_keras(layer):
            names = frozenset(inspect.signature(layer.__init__).parameters)
        else:
            return False
        return any(canonical(names, key) in names for key in defaults)

    return [layer for layer in vars(item).values() if fits(layer)]


def _is_keras(layer: Any) -> bool:
    return isinstance(layer, type) and issubclass(layer, keras.layers.Layer)


def _parameters(layer: Any) -> frozenset[str]:
    if isinstance(layer, RegisteredLayer):
        return layer.parameters
    if _is_keras(layer):
        return _with_defaults(layer)
    raise LayerError(
        f"argscope needs registered layers or Keras classes, got {layer!r}.",
        fix="register the function with @register_layer",
    )


@functools.cache
def _with_defaults(layer: type[keras.layers.Layer]) -> frozenset[str]:
    """Make the constructor of a class use argscopes, and return the names of its arguments."""
    construct = layer.__init__
    signature = inspect.signature(construct)

    @functools.wraps(construct)
    def construct_in_scope(self: Any, *args: Any, **kwargs: Any) -> None:
        if type(self) is layer:
            passed = signature.bind_partial(self, *args, **kwargs).arguments
            missing = {k: v for k, v in defaults_for(layer).items() if k not in passed}
            kwargs = {**missing, **kwargs}
        construct(self, *args, **kwargs)

    # Keras reads the signature without following `__wrapped__`.
    construct_in_scope.__signature__ = signature  # type: ignore[attr-defined]
    layer.__init__ = construct_in_scope
    _, *rest = signature.parameters.values()
    return frozenset(p.name for p in rest if p.kind is not p.VAR_KEYWORD)
