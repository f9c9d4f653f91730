import math
from typing import Any

import keras
import tensorflow as tf

from towerpack._core.errors import LayerError
from towerpack.nn._register import register_layer
from towerpack.nn.keras_layers import channel_axis, keras_layer, register_keras, static_shape
from towerpack.nn.scopes import full_name


def _flat(x: tf.Tensor) -> tf.Tensor:
    shape = static_shape(x, None, "FullyConnected")
    if any(size is None for size in shape[1:]):
        raise LayerError(
            f"FullyConnected '{full_name()}' needs a static input size, got shape {x.shape}.",
            fix="reduce the unknown dimensions first, for example with GlobalAvgPooling",
        )
    return x if len(shape) == 2 else tf.reshape(x, [-1, math.prod(n or 1 for n in shape[1:])])


def _check_integers(x: tf.Tensor) -> tf.Tensor:
    if not x.dtype.is_integer:
        raise LayerError(f"Embedding '{full_name()}' needs integers, got {x.dtype.name}.")
    return tf.cast(x, tf.int64)  # Keras computes with them, which is done on the GPU in int64.


FullyConnected = register_keras(
    "FullyConnected",
    keras.layers.Dense,
    """Fully connected layer; flattens all dimensions except the batch first.

    Variables `kernel` [in, units] and `bias` [units].

    Args:
        x: [batch, …] with a static size per datapoint.
        units: Number of outputs. Old spelling: `out_dim=`.
        activation: Function, Keras name, registered layer or None. Old spelling: `nl=`.
        use_bias: Whether to add a bias.
        kernel_initializer: Keras initializer; None for He et al. 2015, seeded by the layer's name.
        bias_initializer: Keras initializer.
    """,
    prepare=_flat,
)
Embedding = register_keras(
    "Embedding",
    keras.layers.Embedding,
    """Lookup of a trained vector of size `output_dim` for each integer below `input_dim`.

    Arguments as in Keras. Variable `embeddings` [input_dim, output_dim].
    """,
    prepare=_check_integers,
)


@register_layer
def PReLU(
    x: tf.Tensor,
    init: Any = 0.001,
    *,
    channel_wise: bool = False,
    data_format: str = "channels_last",
) -> tf.Tensor:
    """Parametric ReLU (He et al. 2015): `x` if positive, else `alpha · x` with a trained `alpha`.

    Args:
        x: [batch, …, channels].
        init: Initial value of `alpha`, or a Keras initializer.
        channel_wise: Whether each channel has a separate `alpha`.
        data_format: 'channels_last' or 'channels_first'.
    """
    axes = list(range(1, len(static_shape(x, None, "PReLU"))))
    if channel_wise:
        axes.remove(channel_axis(x, "PReLU", data_format) % x.shape.rank)
    value = keras.initializers.Constant(init) if isinstance(init, float | int) else init
    return keras_layer(
        "PReLU", keras.layers.PReLU, x, alpha_initializer=value, shared_axes=tuple(axes)
    )(x)
