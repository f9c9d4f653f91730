"""Terms of the cost that depend on weights alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

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
    """Return the sum of `func(weights)` over trainable variables whose name matches: a scalar.

    Add the result to the cost; trainers warn about a term that was not added. Call it after the
    layers of these variables. It is 0 outside of training.

    Args:
        regex: Searched in the variable's name, for example `'.*/kernel'`. If it matches no
            trainable variable, a `LayerError` is raised.
        func: For example `l2_regularizer(1e-4)`.
        name: Of the term: for messages, and for `summary.add_moving_summary`.
    """
    context = get_current_tower_context()
    if not context.is_training:
        return tf.constant(0.0, name=name)
    variables = context.store.trainable()
    matching = find_matching("regularize_cost", regex, variables, re.search).values()
    with tf.name_scope(name) as scope:
        # The scope's own name makes this the name of the term as well.
        total = tf.add_n([func(tf.cast(v, tf.float32)) for v in matching], name=scope)
    if context.reaches(total):
        context.regularizers.append((f"{name}({regex!r})", total))
    return total


def find_matching(
    who: str, regex: str, variables: Mapping[str, Any], match: Callable[[str, str], Any]
) -> dict[str, Any]:
    """Return the variables whose names match. If there are none, raise a `LayerError` of `who`."""
    found = {name: v for name, v in variables.items() if match(regex, name)}
    if not found:
        raise LayerError(
            f"{who}: no trainable variable matches {regex!r}.", fix=similar_names(regex, variables)
        )
    return found


def similar_names(regex: str, names: Iterable[str]) -> str:
    """Return advice for a regular expression that matches none of the names."""
    renamed = re.sub(r"\bb\b", "bias", re.sub(r"\bW\b", "kernel", regex))
    if renamed == regex:
        return did_you_mean(regex, names)
    return f"W and b are called kernel and bias here: {renamed!r}"
