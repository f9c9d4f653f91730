from typing import Any

import keras
import tensorflow as tf

from towerpack._core.errors import LayerError
from towerpack.nn._context import get_current_tower_context
from towerpack.nn._register import register_layer
from towerpack.nn.keras_layers import (
    apply_layer,
    channel_axis,
    keras_layer,
    register_keras,
    static_shape,
)
from towerpack.nn.scopes import full_name

GroupNorm = register_keras(
    "GroupNorm",
    keras.layers.GroupNormalization,
    """Group normalization (Wu & He 2018) within each of `groups` groups of channels.

    Variables `gamma` and `beta`. Arguments as in Keras.
    """,
    epsilon=1e-5,
)
InstanceNorm = register_keras(
    "InstanceNorm",
    keras.layers.GroupNormalization,
    """Instance normalization (Ulyanov et al. 2016) of images: each channel separately.

    Variables `gamma` and `beta`. Arguments as in Keras.
    """,
    rank=4,
    fixed={"groups": -1},
    by_name=["data_format"],
    epsilon=1e-5,
)


@register_layer
def LayerNorm(
    x: tf.Tensor,
    epsilon: float = 1e-5,
    *,
    axis: int | None = None,
    center: bool = True,
    scale: bool = True,
    beta_initializer: Any = "zeros",
    gamma_initializer: Any = "ones",
    data_format: str = "channels_last",
) -> tf.Tensor:
    """Layer normalization (Ba et al. 2016). Variables `gamma` and `beta`, per channel.

    Args:
        x: [batch, …, channels].
        epsilon: Added to the variance.
        axis: -1 normalizes over the channels. None normalizes images over all dimensions except
            the batch, and other inputs over the channels. Other values as in Keras.
        center: Whether to add `beta`.
        scale: Whether to multiply by `gamma`.
        beta_initializer, gamma_initializer: Keras initializers.
        data_format: 'channels_last' or 'channels_first'.
    """
    config: dict[str, Any] = {"make": keras.layers.LayerNormalization, "axis": axis}
    if axis in (None, -1):
        config["axis"] = channel_axis(x, "LayerNorm", data_format)
    if axis is None and x.shape.rank == 4:
        config |= {"make": keras.layers.GroupNormalization, "groups": 1}
    layer = keras_layer(
        "LayerNorm",
        x=x,
        epsilon=epsilon,
        center=center,
        scale=scale,
        beta_initializer=beta_initializer,
        gamma_initializer=gamma_initializer,
        **config,
    )
    return layer(x)


class _SpectralNormalization(keras.layers.Layer):
    # Keras's SpectralNormalization overwrites the trained kernel with the divided one.
    def __init__(self, *, power_iterations: int, u_initializer: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.power_iterations = power_iterations
        self.u_initializer = u_initializer

    def build(self, input_shape: tuple[int, ...]) -> None:
        self.u: Any = self.add_weight(
            shape=(input_shape[-1], 1), initializer=self.u_initializer, trainable=False, name="u"
        )

    def call(self, inputs: Any, training: bool = False) -> tf.Tensor:
        flat = tf.reshape(inputs, [-1, inputs.shape[-1]])
        frozen = tf.stop_gradient(flat)
        u = v = tf.cast(self.u, flat.dtype)
        for _ in range(self.power_iterations):
            v = tf.math.l2_normalize(frozen @ u)
            u = tf.math.l2_normalize(tf.transpose(frozen) @ v)
        if training:
            self.u.assign(u)
        u, v = tf.stop_gradient(u), tf.stop_gradient(v)
        return inputs / tf.reduce_sum(v * (flat @ u))


@register_layer
def SpectralNorm(x: tf.Tensor, power_iterations: int = 1) -> tf.Tensor:
    """Divide a weight by its largest singular value (Miyato et al. 2018).

    Variable `u` [out, 1] approximates the singular vector of that value, more exactly after each
    training step.

    Args:
        x: Weight [..., in, out], such as a kernel.
        power_iterations: Number of updates of `u` in a step; at least 1.
    """
    static_shape(x, None, "SpectralNorm", 2)
    if power_iterations < 1:
        raise LayerError(
            f"SpectralNorm '{full_name()}': power_iterations must be positive, "
            f"got {power_iterations}."
        )
    layer = keras_layer(
        "SpectralNorm",
        _SpectralNormalization,
        x,
        power_iterations=power_iterations,
        u_initializer=keras.initializers.RandomNormal(),
    )
    return apply_layer(layer, x, get_current_tower_context().is_training)
