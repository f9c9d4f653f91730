"""Terms of the cost that depend on weights alone."""

from __future__ import annotations

import re
from collections.abc import Callable

import tensorflow as tf

from towerpack._core.errors import LayerError
from towerpack._core.naming import did_you_mean
from towerpack.nn._context import get_current_tower_context

Regularizer = Callable[[tf.Tensor], tf.Tensor]


def l2_regularizer(scale: float) -> Regularizer:
    """`scale / 2 · Σ w²`: its gradient is `scale · w`, the classical weight decay."""
    return lambda weights: scale * tf.nn.l2_loss(weights)


def l1_regularizer(scale: float) -> Regularizer:
    """`scale · Σ |w|`."""
    return lambda weights: scale * tf.reduce_sum(tf.abs(weights))


def regularize_cost(regex: str, func: Regularizer, name: str = "regularize_cost") -> tf.Tensor:
    """Sum of `func(weights)` over trainable variables whose name matches.

    The caller adds the result to the cost; trainers warn about a term that was not added. Call it
    after the layers that it is about. It is 0 outside of training.

    Args:
        regex: Searched in the variable's name, for example `'.*/kernel'`.
        func: For example `l2_regularizer(1e-4)`.
        name: Only for messages and graphs.

    Returns:
        float32 scalar.

    Raises:
        LayerError: No trainable variable matches.
    """
    context = get_current_tower_context()
    if not context.is_training:
        return tf.constant(0.0, name=name)
    trainable = context.store.trainable()
    matching = [v for n, v in trainable.items() if re.search(regex, n)]
    if not matching:
        raise LayerError(
            f"regularize_cost: no trainable variable matches {regex!r}.",
            fix=did_you_mean(regex, trainable),
        )
    with tf.name_scope(name):
        total = tf.add_n([func(tf.cast(v, tf.float32)) for v in matching])
    if context.reaches(total):
        context.regularizers.append((f"{name}({regex!r})", total))
    return total
