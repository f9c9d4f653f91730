from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from towerpack._core.errors import LayerError
from towerpack._core.logs import get_logger
from towerpack.nn._context import get_current_tower_context
from towerpack.nn._register import register_layer
from towerpack.nn._registry import RegisteredLayer
from towerpack.nn.keras_layers import (
    Size,
    channel_axis,
    check_groups,
    register_keras,
    sizes,
    static_shape,
)
from towerpack.nn.scopes import full_name

_LOG = get_logger(__name__)

MaxPooling = register_keras(
    "MaxPooling",
    keras.layers.MaxPooling2D,
    """Maximum over windows of `pool_size` pixels.

    Args:
        x: [batch, height, width, channels].
        pool_size: Size in pixels. Old spelling: `shape=`.
        strides: Strides in pixels; None for the pool size. Old spelling: `stride=`.
        padding: 'valid' (default) or 'same', in any case.
        data_format: 'channels_last' or 'channels_first'.
    """,
    rank=4,
)
AvgPooling = register_keras(
    "AvgPooling",
    keras.layers.AveragePooling2D,
    "Mean over windows of `pool_size` pixels; arguments as in `MaxPooling`.",
    rank=4,
)
UpSampling = register_keras(
    "UpSampling",
    keras.layers.UpSampling2D,
    "Upsampling by `size`; `interpolation` is 'nearest', 'bilinear' or another Keras method.",
    rank=4,
)


class GlobalAveragePooling2D(keras.layers.GlobalAveragePooling2D):
    """Keras's layer. For TensorFlow's gradient, the host would wait for a shape from the GPU."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        axis, mean = (1 if self.data_format == "channels_last" else 2), super().call

        @tf.custom_gradient
        def call(x: tf.Tensor) -> Any:
            shape = tf.shape(x)

            def gradient(dy: tf.Tensor) -> tf.Tensor:
                dtype = keras.backend.result_type(x.dtype.name, "float32")
                share = tf.cast(dy, dtype) / tf.cast(shape[axis] * shape[axis + 1], dtype)
                if not self.keepdims:
                    share = tf.expand_dims(tf.expand_dims(share, axis), axis + 1)
                return tf.cast(tf.broadcast_to(share, shape), x.dtype)

            return mean(x), gradient

        return call(inputs)


GlobalAvgPooling = register_keras(
    "GlobalAvgPooling",
    GlobalAveragePooling2D,
    "Mean over height and width: [batch, height, width, channels] to [batch, channels].",
    rank=4,
)


@register_layer
def FixedUnPooling(
    x: tf.Tensor,
    pool_size: Size,
    unpool_mat: Any = None,
    data_format: str = "channels_last",
) -> tf.Tensor:
    """Replace each pixel by its product with a fixed matrix (Kronecker product).

    Args:
        x: [batch, height, width, channels].
        pool_size: Size of the matrix in pixels. Old spelling: `shape=`.
        unpool_mat: Matrix; None for 1 at the first position and 0 elsewhere.
        data_format: 'channels_last' or 'channels_first'.
    """
    static_shape(x, 4, "FixedUnPooling")
    height, width = sizes(pool_size)
    first = tf.scatter_nd([[0, 0]], [1.0], [height, width]) if unpool_mat is None else unpool_mat
    matrix = tf.cast(first, x.dtype)
    if matrix.shape != (height, width):
        raise LayerError(
            f"FixedUnPooling '{full_name()}': the matrix must have the shape {(height, width)} of "
            f"pool_size, got {matrix.shape}."
        )
    if channel_axis(x, "FixedUnPooling", data_format) == 1:
        wide = x[:, :, :, None, :, None] * matrix[:, None, :]
        return tf.reshape(wide, tf.shape(x) * [1, 1, height, width])
    wide = x[:, :, None, :, None, :] * matrix[:, None, :, None]
    return tf.reshape(wide, tf.shape(x) * [1, height, width, 1])


@register_layer
def Maxout(x: tf.Tensor, num_unit: int, *, data_format: str = "channels_last") -> tf.Tensor:
    """Return the maximum of each `num_unit` consecutive channels (Goodfellow et al. 2013)."""
    axis = channel_axis(x, "Maxout", data_format) % x.shape.rank
    check_groups("Maxout", num_unit, x.shape[axis], "channels")
    shape: Any = tf.shape(x)
    shape = tf.concat([shape[:axis], [-1, num_unit], shape[axis + 1 :]], 0)
    return tf.reduce_max(tf.reshape(x, shape), axis + 1)


@register_layer(use_scope=None)
def ConcatWith(x: tf.Tensor, tensor: tf.Tensor | Sequence[tf.Tensor], axis: int = -1) -> tf.Tensor:
    """Concatenate `x` and one or several other tensors along an axis."""
    return tf.concat([x, *(tensor if isinstance(tensor, list | tuple) else [tensor])], axis)


@register_layer(use_scope=None)
def Dropout(x: tf.Tensor, rate: float | tf.Tensor = 0.5) -> tf.Tensor:
    """Set a random fraction of the values to zero in training, and scale up the other values.

    The mask depends on the run's seed, the layer's name, the replica and the global step. Without a
    name, it depends on the scope and the number of earlier calls in the scope.

    Args:
        x: Any shape.
        rate: Fraction that is **dropped**, as in Keras; a number or a scalar tensor. Tensorpack
            took the fraction *kept* first: its `Dropout('d', x, 0.8)` is `Dropout('d', x, 0.2)`
            here. Rates above 0.5 are logged.

    Raises:
        LayerError: The rate is not in [0, 1).
    """
    known = tf.get_static_value(rate) if tf.is_tensor(rate) else rate
    if known is not None and not 0 <= known < 1:
        raise LayerError(f"Dropout '{full_name()}': rate must be in [0, 1), got {known}.")
    context = get_current_tower_context()
    if not context.is_training or known == 0:
        return tf.identity(x)
    if known is not None and known > 0.5:
        drops, share = f"Dropout '{full_name()}' drops {known:.0%} of its input", f"{1 - known:.3g}"
        _LOG.warning("%s. To keep that share, as in Tensorpack, write %s.", drops, share)
    rate = tf.cast(rate, x.dtype) if known is None else float(known)
    return tf.nn.experimental.stateless_dropout(x, rate, seed=context.step_seed(full_name()))


@register_layer(use_scope=None)
def LeakyReLU(x: tf.Tensor, negative_slope: float = 0.3) -> tf.Tensor:
    """Return `x` if positive, else `negative_slope · x`."""
    return tf.nn.leaky_relu(x, negative_slope)


@register_layer(use_scope=None)
def GELU(x: tf.Tensor, approximate: bool = False) -> tf.Tensor:
    """Return `x` times the normal distribution function of `x` (Hendrycks & Gimpel 2016)."""
    return tf.nn.gelu(x, approximate)


def _activation(name: str, function: Callable[[tf.Tensor], tf.Tensor], doc: str) -> RegisteredLayer:
    def layer(x: tf.Tensor) -> tf.Tensor:
        return function(x)

    layer.__name__, layer.__qualname__, layer.__doc__ = name, name, doc
    return register_layer(use_scope=None)(layer)


ReLU = _activation("ReLU", tf.nn.relu, "Return max(x, 0).")
Tanh = _activation("Tanh", tf.math.tanh, "Return the hyperbolic tangent.")
Sigmoid = _activation("Sigmoid", tf.math.sigmoid, "Return 1 / (1 + exp(-x)).")
SiLU = _activation("SiLU", tf.nn.silu, "Return x * sigmoid(x), also called swish.")
