"""Initial values of variables that a tower creates: seeded, and outside the tower's graph."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import lift_to_graph

from towerpack._core.errors import LayerError


@contextmanager
def seeded_graph(seed: int) -> Iterator[None]:
    """Make `tf.random` and `tf.nn.dropout` in the current graph depend only on `seed`.

    The seed overrides `tf.random.set_seed`. Eager code is not affected.
    """
    graph: Any = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    if graph is None:
        yield
        return
    before, graph.seed = graph.seed, seed >> 32
    try:
        yield
    finally:
        graph.seed = before


def run_seeded(value: Callable[[], Any], seed: int) -> Any:
    """Return `value()`. In this call, `tf.random` uses the seed, an integer of 31 bits."""

    def run() -> Any:
        graph: Any = tf.compat.v1.get_default_graph()
        graph.seed = seed
        return tf.convert_to_tensor(value())

    # Each direct call would retrace, and TensorFlow warns about retracing.
    return tf.function(run, autograph=False).get_concrete_function()()


def check_fits(name: str, known: tf.Variable, value: Any, dtype: Any) -> None:
    """Raise a `LayerError` if a variable of an earlier call has another shape or dtype."""
    if callable(value):
        graph: Any = tf.Graph()
        with graph.as_default():
            graph.seed = 0  # Only the shape counts, but deterministic ops need a seed.
            value = cast("Callable[[], Any]", value)()
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        value = np.asarray(value)
    shape = tf.TensorShape(value.shape)
    other_dtype = dtype is not None and tf.as_dtype(dtype) != known.dtype.base_dtype
    if not shape.is_compatible_with(known.shape) or other_dtype:
        raise LayerError(
            f"The variable '{name}' must have the same shape and dtype in all calls of the tower.",
            got=f"shape {shape}" + (f", {tf.as_dtype(dtype).name}" if dtype is not None else ""),
            expected=f"shape {known.shape}, {known.dtype.name}",
            fix="set a unique name= for each layer that exists only in training or only in "
            "evaluation",
        )


def lifted(value: Any, name: str) -> Any:
    """Return an initial value that exists outside the graph that is being traced."""
    if not isinstance(value, tf.Tensor) or hasattr(value, "numpy"):
        return value
    try:
        with tf.init_scope():

            def outer() -> Any:
                graph = tf.compat.v1.get_default_graph()
                return lift_to_graph.lift_to_graph([value], graph)[value]

            return tf.function(outer, autograph=False)()
    except lift_to_graph.UnliftableError as error:
        raise LayerError(
            f"The initial value of variable '{name}' must not depend on the tower's inputs.",
            fix="compute the value from constants, or pass a function or an initializer",
        ) from error
