"""Collections of `tf.compat.v1` for older functions, separate for each tower."""

import copy
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import variable_scope

_KEYS = tf.compat.v1.GraphKeys
_STAYING = (_KEYS.GLOBAL_STEP, variable_scope._VARSCOPESTORE_KEY)


class CompatVariables(variable_scope._VariableStore):
    """Variables that `tf.compat.v1.get_variable` creates or reuses in one call of a tower."""

    def _get_single_variable(self, name: str, *args: Any, **kwargs: Any) -> Any:
        # Eager TensorFlow ignores `reuse` and would create the variable again.
        if name not in self._vars or not tf.executing_eagerly():
            self._vars[name] = super()._get_single_variable(name, *args, **kwargs)
        return self._vars[name]


@contextmanager
def fresh_collections() -> Iterator[None]:
    """Use empty collections in the block, and restore the previous collections at the end.

    Otherwise, replicas in one graph would share regularization losses and counters of scopes
    (`Conv_1` in the second replica). The global step and the open scopes stay. `reuse` is reset,
    because strategies and eager code set it.
    """
    graph = tf.compat.v1.get_default_graph()
    scopes: Any = variable_scope.get_variable_scope_store()
    counts, scopes.variable_scopes_count = scopes.variable_scopes_count, {}
    around, scopes.current_scope = scopes.current_scope, copy.copy(scopes.current_scope)
    scopes.current_scope._reuse = False
    before = {key: graph.get_collection(key) for key in graph.get_all_collection_keys()}
    _fill(graph, {key: before.get(key, []) for key in _STAYING})
    try:
        yield
    finally:
        _fill(graph, before)
        scopes.variable_scopes_count = counts
        scopes.current_scope = around


def collect(variable: tf.Variable, keys: Iterable[str] | None, *, trainable: bool) -> None:
    """Add a variable to collections, such as `tf.compat.v1.trainable_variables()`.

    TensorFlow does this only when a variable is created. `keys` names the collections; None means
    the default collections.
    """
    graph = tf.compat.v1.get_default_graph()
    wanted = [_KEYS.GLOBAL_VARIABLES] if keys is None else list(keys)
    for key in dict.fromkeys(wanted + [_KEYS.TRAINABLE_VARIABLES] * trainable):
        collection = graph.get_collection_ref(key)
        if all(known is not variable for known in collection):
            collection.append(variable)
    if not trainable:  # `wrap_function` also collects new variables of frozen Keras layers.
        trained = graph.get_collection_ref(_KEYS.TRAINABLE_VARIABLES)
        trained[:] = [known for known in trained if known is not variable]


def _fill(graph: tf.Graph, collections: Mapping[Any, list[Any]]) -> None:
    for key in {*graph.get_all_collection_keys(), *collections}:
        graph.get_collection_ref(key)[:] = collections.get(key, [])
