"""Layers without weights: pooling, dropout, activations."""

from __future__ import annotations

import tensorflow as tf

from towerpack._core.errors import LayerError
from towerpack.nn._context import get_current_tower_context
from towerpack.nn._layers import Size, data_format_of, padding_of, pair, static_shape
from towerpack.nn._register import register_layer
from towerpack.nn._scope import full_name


def _pool(
    x: tf.Tensor, kind: str, pool_size: Size, strides: Size | None, padding: str, data_format: str
) -> tf.Tensor:
    static_shape(x, 4, f"{kind.title()}Pooling")
    size = pair(pool_size)
    step = size if strides is None else pair(strides)
    format_ = "NCHW" if data_format_of(data_format) == "channels_first" else "NHWC"
    pad = "SAME" if padding_of(padding) == "same" else "VALID"
    function = tf.nn.max_pool2d if kind == "max" else tf.nn.avg_pool2d
    return function(x, size, step, pad, data_format=format_)


@register_layer
def MaxPooling(
    x: tf.Tensor,
    pool_size: Size,
    strides: Size | None = None,
    padding: str = "valid",
    *,
    data_format: str = "channels_last",
) -> tf.Tensor:
    """Maximum over windows of `pool_size` pixels.

    Args:
        x: [batch, height, width, channels].
        pool_size: Pixels. Old spelling: `shape=`.
        strides: Pixels; None for the pool size. Old spelling: `stride=`.
        padding: 'valid' (default) or 'same', in either case.
        data_format: 'channels_last' or 'channels_first'.
    """
    return _pool(x, "max", pool_size, strides, padding, data_format)


@register_layer
def AvgPooling(
    x: tf.Tensor,
    pool_size: Size,
    strides: Size | None = None,
    padding: str = "valid",
    *,
    data_format: str = "channels_last",
) -> tf.Tensor:
    """Mean over windows of `pool_size` pixels; arguments as in `MaxPooling`."""
    return _pool(x, "avg", pool_size, strides, padding, data_format)


@register_layer
def GlobalAvgPooling(x: tf.Tensor, *, data_format: str = "channels_last") -> tf.Tensor:
    """Mean over height and width: [batch, height, width, channels] to [batch, channels]."""
    static_shape(x, 4, "GlobalAvgPooling")
    first = data_format_of(data_format) == "channels_first"
    return tf.reduce_mean(x, [2, 3] if first else [1, 2])


@register_layer(use_scope=None)
def Dropout(x: tf.Tensor, rate: float | tf.Tensor = 0.5) -> tf.Tensor:
    """Set a random share of the values to zero while training, and scale up the others.

    The mask is a function of the run's seed, the layer's name, the replica and the global step.
    Without a name it is that of the scope, and the number of the draw in it.

    Args:
        x: Any shape.
        rate: The share that is **dropped**, as in Keras; a number or a scalar tensor. (The
            predecessor's first positional argument was the share *kept*: its `Dropout('d', x, 0.8)`
            is `Dropout('d', x, 0.2)` here. At 0.5 they agree.)
    """
    known = tf.get_static_value(rate) if tf.is_tensor(rate) else rate
    if known is not None and not 0 <= known < 1:
        raise LayerError(
            f"Dropout '{full_name()}': a rate of {known} makes no sense.",
            expected="the share to drop: at least 0 and below 1",
        )
    context = get_current_tower_context()
    if not context.is_training or known == 0:
        return tf.identity(x)
    return tf.nn.experimental.stateless_dropout(x, rate, seed=context.step_seed(full_name()))


@register_layer(use_scope=None)
def ReLU(x: tf.Tensor) -> tf.Tensor:
    """max(x, 0)."""
    return tf.nn.relu(x)


@register_layer(use_scope=None)
def LeakyReLU(x: tf.Tensor, negative_slope: float = 0.3) -> tf.Tensor:
    """X where positive, otherwise `negative_slope` · x."""
    return tf.nn.leaky_relu(x, negative_slope)


@register_layer(use_scope=None)
def Tanh(x: tf.Tensor) -> tf.Tensor:
    """Hyperbolic tangent."""
    return tf.math.tanh(x)


@register_layer(use_scope=None)
def Sigmoid(x: tf.Tensor) -> tf.Tensor:
    """1 / (1 + exp(-x))."""
    return tf.math.sigmoid(x)
