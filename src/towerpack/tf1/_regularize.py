from __future__ import annotations

from typing import Any

import tensorflow as tf

from towerpack._core.errors import LayerError
from towerpack.nn import get_current_tower_context


def regularize_cost_from_collection(name: str = "regularize_cost") -> tf.Tensor:
    """Return the sum of the regularization losses of `tf.compat.v1.get_variable`: float32 scalar.

    The sum is 0 outside of training. It includes tf_slim's `weights_regularizer=`, but not the
    `losses` of Keras layers. The caller must add it to the cost.

    Args:
        name: Name of the tensor.

    Raises:
        LayerError: TensorFlow runs eagerly, so there are no collections.
    """
    if tf.executing_eagerly():
        raise LayerError(
            "regularize_cost_from_collection must be called in graph mode, not eagerly.",
            fix="call the tower function in a tf.function",
        )
    terms: Any = tf.compat.v1.losses.get_regularization_losses()
    if not terms or not get_current_tower_context().is_training:
        return tf.constant(0.0, name=name)
    return tf.add_n(terms, name=name)
