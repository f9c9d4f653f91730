"""The global step of `tf.compat.v1`, which schedules and models of old programs read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf


@contextmanager
def global_step() -> Iterator[Any]:
    """Have `tf.compat.v1.train.get_or_create_global_step()` give one int64 variable inside.

    It is the one that the program has made, if it has, or else a new one.
    """
    known = find_global_step()
    step = new_step() if known is None else known
    with found_as_global_step(step):
        yield step


def find_global_step() -> Any:
    """The variable that is the global step here or around the graph being built, or None."""
    graph: Any = tf.compat.v1.get_default_graph()
    while graph is not None:  # A graph of `wrap_function` does not know it, what is around does.
        step = tf.compat.v1.train.get_global_step(graph)
        if step is not None:
            return step
        graph = getattr(graph, "outer_graph", None)
    return None


def new_step() -> tf.Variable:
    """A counter that outlives the graph that is being built."""
    with tf.init_scope():
        return tf.Variable(tf.constant(0, tf.int64), trainable=False, name="global_step")


@contextmanager
def found_as_global_step(step: Any) -> Iterator[None]:
    """Let `tf.compat.v1.train.get_global_step()` find a variable, where it finds none so far."""
    key = tf.compat.v1.GraphKeys.GLOBAL_STEP
    steps = tf.compat.v1.get_default_graph().get_collection_ref(key)
    before = list(steps)
    steps[:] = before or [step]
    try:
        yield
    finally:
        steps[:] = before
