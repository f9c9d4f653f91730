"""Global step of `tf.compat.v1`, which schedules and models of older programs read."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf


@contextmanager
def global_step() -> Iterator[Any]:
    """Context manager in which all `tf.compat.v1.train` functions use one global step.

    Yields:
        The program's existing global step, or a new variable.
    """
    known = find_global_step()
    step = new_step() if known is None else known
    with found_as_global_step(step):
        yield step


def find_global_step() -> Any:
    """Return the global step of the current graph or of its outer graphs, or None."""
    graph: Any = tf.compat.v1.get_default_graph()
    while graph is not None:  # The graph of a `wrap_function` lacks it, an outer graph may have it.
        step = tf.compat.v1.train.get_global_step(graph)
        if step is not None:
            return step
        graph = getattr(graph, "outer_graph", None)
    return None


def new_step() -> tf.Variable:
    """Create a global step outside the graph that is being traced, in the host's memory.

    Seeds of random numbers depend on the step, and also GPUs read seeds from the host.
    """
    with tf.init_scope(), tf.device("CPU:0"):
        return tf.Variable(tf.constant(0, tf.int64), trainable=False, name="global_step")


@contextmanager
def found_as_global_step(step: Any) -> Iterator[None]:
    """Make `tf.compat.v1.train.get_global_step()` return `step`, unless the graph has another.

    Args:
        step: Variable or tensor, int64 scalar.
    """
    key = tf.compat.v1.GraphKeys.GLOBAL_STEP
    steps = tf.compat.v1.get_default_graph().get_collection_ref(key)
    before = list(steps)
    steps[:] = before or [step]
    try:
        yield
    finally:
        steps[:] = before
