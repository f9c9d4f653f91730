from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from towerpack.nn import get_current_tower_context, register_layer
from towerpack.nn.keras_layers import apply_layer


@register_layer
def KerasApplication(x: tf.Tensor, make: Callable[..., keras.Model]) -> tf.Tensor:  # noqa: N802
    """Return the pooled features [n, channels] of a network of `keras.applications`.

    Variables keep Keras's names below the name of the layer: `resnet50/conv1_conv/kernel`. The
    run's seed determines their initial values.
    """
    context = get_current_tower_context()

    def build(name: str, dtype: Any) -> keras.Model:
        before = keras.config.dtype_policy()
        keras.config.set_dtype_policy(dtype or before)
        try:
            return make(
                include_top=False, weights=None, input_shape=x.shape[1:], pooling="avg", name=name
            )
        finally:
            keras.config.set_dtype_policy(before)

    layer = context.store.layer(build, tuple(x.shape.as_list()))
    return apply_layer(layer, x, context.is_training)
