"""Values and variables of which each replica has a copy, seen from outside of the replicas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from towerpack.nn import components_of


def first(value: Any) -> Any:
    """The first replica's copy of a value; the value itself where there are no copies."""
    # Not by `components_of` alone: sparse gradients have `values` too.
    distributed = isinstance(value, tf.distribute.DistributedValues)
    return components_of(value)[0] if distributed else value


def like(variable: tf.Variable, **kwargs: Any) -> tf.Variable:
    """A new variable with the value, dtype and name of another, or of its first replica's copy.

    Args:
        variable: The other one.
        **kwargs: What else `tf.Variable` takes.
    """
    return tf.Variable(
        tf.convert_to_tensor(first(variable).numpy()),
        trainable=variable.trainable,
        dtype=variable.dtype,
        name=variable.name.partition(":")[0],
        **kwargs,
    )


def on_replicas(
    strategy: tf.distribute.Strategy, function: Callable[..., Any], *values: Any
) -> Any:
    """In the graph: call a function, on each replica with its copies of the values.

    Args:
        strategy: That of the distributed values among them, if there are some.
        function: Computes tensors, and changes nothing.
        *values: Any structures of tensors, variables and distributed values.

    Returns:
        What it gives: of distributed values, tensors that are distributed likewise.
    """
    if any(isinstance(value, tf.distribute.DistributedValues) for value in tf.nest.flatten(values)):
        return strategy.run(function, args=values)
    return function(*values)


def update(variable: tf.Variable, function: Callable[..., Any], *values: Any) -> None:
    """In the graph: call a function that changes a variable, on each replica's copy of it.

    Args:
        variable: Of any kind.
        function: Takes it, or a copy, and the values.
        *values: Tensors, variables and distributed values.
    """
    if isinstance(variable, tf.distribute.DistributedValues):
        variable.distribute_strategy.extended.update(variable, function, args=values)
    else:
        function(variable, *map(first, values))


def arrays_of(variables: Mapping[str, tf.Variable]) -> dict[str, np.ndarray]:
    return {name: variable.numpy() for name, variable in variables.items()}
