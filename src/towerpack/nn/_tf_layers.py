"""What programs used of `tf.layers`, which Keras 3 took away: on our layers by name.

Arguments, their order and their defaults are those of TensorFlow 1. Without a name a layer is
called `conv2d`, `conv2d_1`, … in each tower alike.
"""

from __future__ import annotations

from math import prod
from typing import Any

import tensorflow as tf

from towerpack._core.errors import LayerError
from towerpack.nn._batch_norm import BatchNorm
from towerpack.nn._context import get_current_tower_context
from towerpack.nn._conv import Conv2D
from towerpack.nn._dense import FullyConnected
from towerpack.nn._layers import Size, static_shape
from towerpack.nn._register import register_layer
from towerpack.nn._scope import full_name
from towerpack.nn._stateless import AvgPooling, Dropout, MaxPooling

_GLOROT = "glorot_uniform"


@register_layer(use_scope=False)
def conv2d(
    inputs: tf.Tensor,
    filters: int,
    kernel_size: Size,
    strides: Size = 1,
    padding: str = "valid",
    data_format: str = "channels_last",
    dilation_rate: Size = 1,
    activation: Any = None,
    use_bias: bool = True,
    kernel_initializer: Any = _GLOROT,
    bias_initializer: Any = "zeros",
    *,
    name: str | None = None,
) -> tf.Tensor:
    """`Conv2D` as `tf.layers.conv2d`."""
    return Conv2D(
        _named("conv2d", name),
        inputs,
        filters,
        kernel_size,
        strides,
        padding,
        data_format=data_format,
        dilation_rate=dilation_rate,
        activation=activation,
        use_bias=use_bias,
        kernel_initializer=kernel_initializer or _GLOROT,
        bias_initializer=bias_initializer,
    )


@register_layer(use_scope=False)
def dense(
    inputs: tf.Tensor,
    units: int,
    activation: Any = None,
    use_bias: bool = True,
    kernel_initializer: Any = _GLOROT,
    bias_initializer: Any = "zeros",
    *,
    name: str | None = None,
) -> tf.Tensor:
    """`FullyConnected` as `tf.layers.dense`, over [batch, features].

    Raises:
        LayerError: Another rank.
    """
    if inputs.shape.rank != 2:
        raise LayerError(
            "tf.layers.dense takes [batch, features] here.",
            got=f"shape {inputs.shape}",
            fix="tf.layers.flatten(x) first, or keras.layers.Dense for the last axis of many",
        )
    return FullyConnected(
        _named("dense", name),
        inputs,
        units,
        activation=activation,
        use_bias=use_bias,
        kernel_initializer=kernel_initializer or _GLOROT,
        bias_initializer=bias_initializer,
    )


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
def max_pooling2d(
    inputs: tf.Tensor,
    pool_size: Size,
    strides: Size,
    padding: str = "valid",
    data_format: str = "channels_last",
    *,
    name: str | None = None,
) -> tf.Tensor:
    """`MaxPooling` as `tf.layers.max_pooling2d`."""
    name = _named("max_pooling2d", name)
    return MaxPooling(name, inputs, pool_size, strides, padding, data_format=data_format)


@register_layer(use_scope=False)
def average_pooling2d(
    inputs: tf.Tensor,
    pool_size: Size,
    strides: Size,
    padding: str = "valid",
    data_format: str = "channels_last",
    *,
    name: str | None = None,
) -> tf.Tensor:
    """`AvgPooling` as `tf.layers.average_pooling2d`."""
    name = _named("average_pooling2d", name)
    return AvgPooling(name, inputs, pool_size, strides, padding, data_format=data_format)


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
