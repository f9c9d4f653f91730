"""Functions on distributed values and variables, in cross-replica context."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from towerpack.nn import components_of


def first(value: Any) -> Any:
    """Return the first replica's copy of a distributed value, or another value unchanged."""
    # `components_of` alone is not enough, because sparse gradients have `values` too.
    distributed = isinstance(value, tf.distribute.DistributedValues)
    return components_of(value)[0] if distributed else value


def like(variable: tf.Variable, **kwargs: Any) -> tf.Variable:
    """Create a variable with the dtype, name and first replica's value of another variable."""
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
    """Call a function on each replica with the replica's copies of the values, in the graph.

    The function must not change variables. The result is distributed if some value is.
    """
    if any(isinstance(value, tf.distribute.DistributedValues) for value in tf.nest.flatten(values)):
        return strategy.run(function, args=values)
    return function(*values)


def update(variable: tf.Variable, function: Callable[..., Any], *values: Any) -> None:
    """Call a function that changes a variable on each replica's copy, in the graph."""
    if isinstance(variable, tf.distribute.DistributedValues):
        variable.distribute_strategy.extended.update(variable, function, args=values)
    else:
        function(variable, *map(first, values))


def arrays_of(variables: Mapping[str, tf.Variable]) -> dict[str, np.ndarray]:
    return {name: variable.numpy() for name, variable in variables.items()}
