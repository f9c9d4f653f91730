import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tensorflow as tf

from towerpack._core.errors import LayerError
from towerpack._core.naming import did_you_mean
from towerpack.nn._context import get_current_tower_context

Regularizer = Callable[[tf.Tensor], tf.Tensor]


def l2_regularizer(scale: float) -> Regularizer:
    """Return a function that computes `scale / 2 · Σ w²`, whose gradient is `scale · w`.

    Args:
        scale: Strength of the weight decay.
    """
    return lambda weights: scale * tf.nn.l2_loss(weights)


def l1_regularizer(scale: float) -> Regularizer:
    """Return a function that computes `scale · Σ |w|`.

    Args:
        scale: Factor of the sum.
    """
    return lambda weights: scale * tf.reduce_sum(tf.abs(weights))


def regularize_cost(regex: str, func: Regularizer, name: str = "regularize_cost") -> tf.Tensor:
    """Return the sum of `func(weights)` over trainable variables with matching names: a scalar.

    Call this function after the layers that create the variables, and add its result to the cost.
    Trainers warn about terms that are not part of the cost. Outside of training the result is 0.

    Args:
        regex: Regular expression, searched in variable names, for example `'.*/kernel'`.
        func: Regularizer, for example `l2_regularizer(1e-4)`.
        name: Name of the term in messages and in `summary.add_moving_summary`.

    Raises:
        LayerError: No trainable variable matches.
    """
    context = get_current_tower_context()
    if not context.is_training:
        return tf.constant(0.0, name=name)
    variables = context.store.trainable()
    matching = find_matching("regularize_cost", regex, variables, re.search).values()
    with tf.name_scope(name) as scope:
        # The name of the scope is then also the name of the term.
        total = tf.add_n([func(tf.cast(v, tf.float32)) for v in matching], name=scope)
    if context.reaches(total):
        context.regularizers.append((f"{name}({regex!r})", total))
    return total


def find_matching(
    caller: str, regex: str, variables: Mapping[str, Any], match: Callable[[str, str], Any]
) -> dict[str, Any]:
    """Return the variables whose names match.

    Args:
        caller: Name of the calling function for the message.
        regex: Regular expression.
        variables: Variables by name.
        match: `re.search` or `re.fullmatch`.

    Raises:
        LayerError: No variable matches.
    """
    matches = {name: v for name, v in variables.items() if match(regex, name)}
    if not matches:
        raise LayerError(
            f"{caller}: no trainable variable matches {regex!r}.",
            fix=similar_names(regex, variables),
        )
    return matches


def similar_names(regex: str, names: Iterable[str]) -> str:
    renamed = re.sub(r"\bb\b", "bias", re.sub(r"\bW\b", "kernel", regex))
    if renamed == regex:
        return did_you_mean(regex, names)
    return f"use {renamed!r}, because W and b are called kernel and bias here"
