"""Terms of regularisation that functions of TensorFlow 1 collect."""

from __future__ import annotations

import tensorflow as tf

from towerpack._core.errors import LayerError
from towerpack.nn import get_current_tower_context
from towerpack.nn.compat_collections import collected_terms


def regularize_cost_from_collection(name: str = "regularize_cost") -> tf.Tensor:
    """Sum of the terms that variables of `tf.compat.v1.get_variable(regularizer=…)` ask for.

    So does tf_slim with `weights_regularizer=`. The caller adds the result to the cost. It is 0
    outside of training, and where there is no such variable. Those of Keras layers are not in it:
    add `sum(layer.losses)`.

    Args:
        name: Of the sum.

    Returns:
        float32 scalar.

    Raises:
        LayerError: TensorFlow runs eagerly, and so does not collect them.
    """
    if tf.executing_eagerly():
        raise LayerError(
            "regularize_cost_from_collection: TensorFlow collects nothing where it runs eagerly.",
            fix="call the tower in a tf.function",
        )
    terms = collected_terms() if get_current_tower_context().is_training else []
    return tf.add_n(terms, name=name) if terms else tf.constant(0.0, name=name)
