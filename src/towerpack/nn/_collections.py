"""Collections of `tf.compat.v1`, which old functions fill and read: each tower sees its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import variable_scope

_KEYS = tf.compat.v1.GraphKeys
_STAYING = (_KEYS.GLOBAL_STEP, variable_scope._VARSCOPESTORE_KEY)


@contextmanager
def own_collections() -> Iterator[None]:
    """Start with empty collections inside, and drop what was collected.

    Replicas that are built into one graph would find each other's regularisation losses there, and
    scopes without a name would be numbered on (`Conv_1` in the second replica). The global step
    and the open scopes stay.
    """
    graph = tf.compat.v1.get_default_graph()
    scopes: Any = variable_scope.get_variable_scope_store()
    counts, scopes.variable_scopes_count = scopes.variable_scopes_count, {}
    before = {key: graph.get_collection(key) for key in graph.get_all_collection_keys()}
    _fill(graph, {key: before.get(key, []) for key in _STAYING})
    try:
        yield
    finally:
        _fill(graph, before)
        scopes.variable_scopes_count = counts


def collect(variable: tf.Variable, wanted: Mapping[str, Any]) -> None:
    """Put a variable where `tf.compat.v1.trainable_variables()` finds it, in each call alike.

    TensorFlow does it once, where a variable is made, and not for those that outlive a graph.

    Args:
        variable: It.
        wanted: Arguments with which it was asked for.
    """
    keys = set(wanted.get("collections") or [_KEYS.GLOBAL_VARIABLES])
    tf.compat.v1.add_to_collections(
        keys | {_KEYS.TRAINABLE_VARIABLES} if variable.trainable else keys, variable
    )


def collected_terms() -> list[tf.Tensor]:
    """Terms of regularisation that `tf.compat.v1.get_variable(regularizer=…)` has made here."""
    return tf.compat.v1.get_collection(_KEYS.REGULARIZATION_LOSSES)


def _fill(graph: tf.Graph, collections: Mapping[Any, list[Any]]) -> None:
    for key in {*graph.get_all_collection_keys(), *collections}:
        graph.get_collection_ref(key)[:] = collections.get(key, [])
