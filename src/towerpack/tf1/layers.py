"""Common layers of `tf.layers`, which Keras 3 removed, as layers by name.

Arguments, their order and their defaults are the same as in TensorFlow 1. Layers without a name are
called `conv2d`, `conv2d_1`, … in every tower.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from math import prod
from typing import Any, cast

import tensorflow as tf

from towerpack._core.errors import LayerError
from towerpack.nn import (
    AvgPooling,
    BatchNorm,
    Conv2D,
    Dropout,
    FullyConnected,
    MaxPooling,
    RegisteredLayer,
    get_current_tower_context,
    register_layer,
)
from towerpack.nn.keras_layers import static_shape
from towerpack.nn.scopes import full_name

__all__ = [
    "average_pooling2d", "batch_normalization", "conv2d", "dense", "dropout", "flatten",
    "max_pooling2d"
]  # fmt: skip


def _like(
    layer: RegisteredLayer,
    name: str,
    check: Callable[[tf.Tensor], None] = lambda inputs: None,
    without: tuple[str, ...] = (),
    **defaults: Any,
) -> RegisteredLayer:
    """Register a layer with TensorFlow 1's name, arguments and defaults."""
    first, *rest = inspect.signature(layer.func).parameters.values()
    known = [p.replace(default=defaults.get(p.name, p.default)) for p in rest]
    parameters = [
        first.replace(name="inputs"),
        *(p for p in known if p.name not in without),
        inspect.Parameter("name", inspect.Parameter.KEYWORD_ONLY, default=None),
    ]
    signature = inspect.Signature(parameters)

    def call(*args: Any, **kwargs: Any) -> tf.Tensor:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        config: dict[str, Any] = {
            k: defaults.get(k) if v is None else v for k, v in bound.arguments.items()
        }
        inputs, layer_name = config.pop("inputs"), config.pop("name")
        check(inputs)
        return layer(_layer_name(name, layer_name), inputs, **config)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"Apply `{layer.name}` with the arguments of `tf.layers.{name}`."
    cast("Any", call).__signature__ = signature
    return register_layer(use_scope=False)(call)


def _check_rank(inputs: tf.Tensor) -> None:
    if inputs.shape.rank != 2:
        raise LayerError(
            "tf.layers.dense needs inputs of the shape [batch, features].",
            got=f"shape {inputs.shape}",
            fix="call tf.layers.flatten(x) first, or use keras.layers.Dense for more axes",
        )


conv2d = _like(
    Conv2D, "conv2d", without=("groups",), padding="valid", kernel_initializer="glorot_uniform"
)
dense = _like(FullyConnected, "dense", _check_rank, kernel_initializer="glorot_uniform")
max_pooling2d = _like(MaxPooling, "max_pooling2d")
average_pooling2d = _like(AvgPooling, "average_pooling2d")


@register_layer(use_scope=False)
def batch_normalization(
    inputs: tf.Tensor,
    axis: int = -1,
    momentum: float = 0.99,
    epsilon: float = 1e-3,
    center: bool = True,
    scale: bool = True,
    *,
    training: bool = False,
    name: str | None = None,
) -> tf.Tensor:
    """Apply batch normalization. Moving averages are updated without `UPDATE_OPS`.

    Args:
        inputs, name: Tensor to normalize, and name of the layer.
        axis: Axis of the channels: 1 or -1.
        momentum, epsilon, center, scale: Same as in `keras.layers.BatchNormalization`.
        training: Use the statistics of the batch instead of the moving averages.
    """
    return BatchNorm(
        _layer_name("batch_normalization", name),
        inputs,
        momentum=momentum,
        epsilon=epsilon,
        training=training,
        center=center,
        scale=scale,
        data_format="channels_first" if axis == 1 else "channels_last",
    )


@register_layer(use_scope=False)
def dropout(
    inputs: tf.Tensor, rate: float = 0.5, *, training: bool = False, name: str | None = None
) -> tf.Tensor:
    """Drop values at random if `training`, otherwise return the inputs.

    Args:
        inputs, name: Any tensor, and name of the layer.
        rate, training: Fraction of values to drop, and whether to drop values.
    """
    name = _layer_name("dropout", name)
    return Dropout(name, inputs, rate) if training else tf.identity(inputs)


@register_layer(use_scope=False)
def flatten(inputs: tf.Tensor, *, name: str | None = None) -> tf.Tensor:
    """Flatten all axes except the first.

    Args:
        inputs, name: Tensor [batch, ...] with known axes after the first, and name of the result.
    """
    features = static_shape(inputs, None, "flatten")[1:]
    return tf.reshape(inputs, [-1, prod(n or -1 for n in features)], name=name)


def _layer_name(kind: str, name: str | None) -> str:
    """Return `name`, or an unused default name of the layer kind, such as `conv2d_1`."""
    if name is not None:
        return name
    used = get_current_tower_context().used_names
    number = 0
    while full_name(free := f"{kind}_{number}" if number else kind) in used:
        number += 1
    return free
