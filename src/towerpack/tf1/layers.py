"""What programs used of `tf.layers`, which Keras 3 took away: on our layers by name.

Arguments, their order and their defaults are those of TensorFlow 1. Without a name a layer is
called `conv2d`, `conv2d_1`, … in each tower alike.
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
    """One of our layers under TensorFlow 1's name, without some arguments, with other defaults."""
    first, *rest = inspect.signature(layer.func).parameters.values()
    known = [p.replace(default=defaults.get(p.name, p.default)) for p in rest]
    parameters = [
        first.replace(name="inputs"),
        *(p for p in known if p.name not in without),
        inspect.Parameter("name", inspect.Parameter.KEYWORD_ONLY, default=None),
    ]
    signature = inspect.Signature(parameters)

    def call(*args: Any, **kwargs: Any) -> tf.Tensor:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        config: dict[str, Any] = {
            k: defaults.get(k) if v is None else v for k, v in given.arguments.items()
        }
        inputs, own_name = config.pop("inputs"), config.pop("name")
        check(inputs)
        return layer(_named(name, own_name), inputs, **config)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"`{layer.name}` as `tf.layers.{name}`."
    cast("Any", call).__signature__ = signature
    return register_layer(use_scope=False)(call)


def _check_rank(inputs: tf.Tensor) -> None:
    if inputs.shape.rank != 2:
        raise LayerError(
            "tf.layers.dense takes [batch, features] here.",
            got=f"shape {inputs.shape}",
            fix="tf.layers.flatten(x) first, or keras.layers.Dense for the last axis of many",
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
    """`BatchNorm` as `tf.layers.batch_normalization`; the averages move without `UPDATE_OPS`."""
    return BatchNorm(
        _named("batch_normalization", name),
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
    """`Dropout` as `tf.layers.dropout`: nothing is dropped unless `training` is True."""
    name = _named("dropout", name)
    return Dropout(name, inputs, rate) if training else tf.identity(inputs)


@register_layer(use_scope=False)
def flatten(inputs: tf.Tensor, *, name: str | None = None) -> tf.Tensor:
    """All but the batch dimension in one, as `tf.layers.flatten`."""
    features = static_shape(inputs, None, "flatten")[1:]
    return tf.reshape(inputs, [-1, prod(n or -1 for n in features)], name=name)


def _named(kind: str, name: str | None) -> str:
    """The given name, or the first free one of its kind in this tower."""
    if name is not None:
        return name
    used = get_current_tower_context().used_names
    number = 0
    while full_name(found := f"{kind}_{number}" if number else kind) in used:
        number += 1
    return found
