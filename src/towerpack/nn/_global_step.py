"""The global step of `tf.compat.v1`, which schedules and models of old programs read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf


@contextmanager
def global_step() -> Iterator[Any]:
    """Let `tf.compat.v1.train.get_or_create_global_step()` return one int64 variable inside.

    It is the program's own global step if there is one, or else a new variable.
    """
    known = find_global_step()
    step = new_step() if known is None else known
    with found_as_global_step(step):
        yield step


def find_global_step() -> Any:
    """Return the global step of the current graph or of those around it, or None."""
    graph: Any = tf.compat.v1.get_default_graph()
    while graph is not None:  # A graph of `wrap_function` does not know it, what is around does.
        step = tf.compat.v1.train.get_global_step(graph)
        if step is not None:
            return step
        graph = getattr(graph, "outer_graph", None)
    return None


def new_step() -> tf.Variable:
    """Create a global step outside of the graph that is being built."""
    with tf.init_scope():
        return tf.Variable(tf.constant(0, tf.int64), trainable=False, name="global_step")


@contextmanager
def found_as_global_step(step: Any) -> Iterator[None]:
    """Let `tf.compat.v1.train.get_global_step()` find a variable if there is none yet."""
    key = tf.compat.v1.GraphKeys.GLOBAL_STEP
    steps = tf.compat.v1.get_default_graph().get_collection_ref(key)
    before = list(steps)
    steps[:] = before or [step]
    try:
        yield
    finally:
        steps[:] = before
