"""Variables that outlive a change of TensorFlow's devices."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops


@contextmanager
def variables_kept() -> Iterator[None]:
    """Make the program's variables anew inside the cluster: TensorFlow loses those of before.

    The model and the optimizer may hold some, which were made for the configuration.
    """
    kind = resource_variable_ops.BaseResourceVariable
    known: list[Any] = [o for o in gc.get_objects() if issubclass(type(o), kind)]
    values = [(variable, variable.numpy()) for variable in known]
    yield
    for variable, value in values:
        # It owns what the handle stands for.
        variable._owner = tf.Variable(value, dtype=variable.dtype)
        variable._handle = variable._owner.handle
