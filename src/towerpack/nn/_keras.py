"""The one place that touches what Keras does not export.

Each function names what it needs and why; a Keras release that moves these breaks here and in
`tests/unit/nn/test_keras_adapter.py`, nowhere else. Verified on Keras 3.15.
"""

from __future__ import annotations

import collections
import random
from collections.abc import Iterator
from contextlib import contextmanager

import keras
from keras.src.backend.common import global_state
from keras.src.backend.common.name_scope import current_path
from keras.src.layers.layer import CallContext

_CALL_CONTEXT = "current_call_ctx"
_NAME_COUNTERS = "object_name_uids"


def variable_path() -> str:
    """The path of Keras layers that are being built right now, `''` outside of any."""
    return current_path()


@contextmanager
def layers_see_training(training: bool) -> Iterator[None]:
    """Make every Keras layer called inside run with `training`, unless it is told otherwise.

    Keras takes the flag from an outer layer's call; a tower function is not a layer, so without
    this a `keras.layers.Dropout` inside a tower would silently never drop.
    """
    before = global_state.get_global_attribute(_CALL_CONTEXT)
    context = CallContext(entry_layer=object())
    context.set_value("training", training)
    global_state.set_global_attribute(_CALL_CONTEXT, context)
    try:
        yield
    finally:
        global_state.set_global_attribute(_CALL_CONTEXT, before)


@contextmanager
def fresh_names() -> Iterator[None]:
    """Number automatic Keras names (`dense`, `dense_1`) from the start, in each trace alike.

    Keras counts them for the whole process; a second trace of one tower would give other names
    to the same layers.
    """
    before = global_state.get_global_attribute(_NAME_COUNTERS)
    global_state.set_global_attribute(_NAME_COUNTERS, collections.defaultdict(int))
    try:
        yield
    finally:
        global_state.set_global_attribute(_NAME_COUNTERS, before)


@contextmanager
def seeded_initializers(seed: int) -> Iterator[None]:
    """Draw the seeds of Keras initialisers that were given none from `seed`.

    Keras draws them from Python's global generator, which is put back as it was.
    """
    before = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)


def alias(variable: object, path: str) -> keras.Variable:
    """A Keras variable with our path around an existing `tf.Variable`, sharing its memory."""
    *scopes, name = path.split("/")
    with _open_scopes(scopes):
        return keras.Variable(variable, name=name, trainable=True)


@contextmanager
def _open_scopes(scopes: list[str]) -> Iterator[None]:
    if not scopes:
        yield
        return
    with keras.name_scope(scopes[0]), _open_scopes(scopes[1:]):
        yield
