"""A table whose rows are looked up repeatedly, with sparse gradients or with dense ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from towerpack.nn import FullyConnected
from towerpack.training import build_step

ROWS = 5
RNG = np.random.default_rng(3)
IDS = RNG.integers(0, ROWS - 1, (16, 4))  # Row 4 is never read.
TARGETS = RNG.normal(size=(16, 4, 2)).astype(np.float32)

Lookup = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def gathered(table: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    return tf.gather(table, ids)


def one_hot(table: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    return tf.tensordot(tf.one_hot(ids, ROWS), table, 1)


def embedding_model(lookup: Lookup, make: Callable[[], Any]) -> Any:
    """A table, and a layer with dense gradients beside it."""

    def build(ids: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
        ones = tf.ones_initializer()
        table = tf.compat.v1.get_variable("table", [ROWS, 2], initializer=ones)
        rows = tf.reshape(lookup(table, ids), [-1, 2])
        found = FullyConnected("fc", rows, 2, kernel_initializer="ones")
        FullyConnected("idle", rows, 1)  # Has no gradient.
        return 10.0 * tf.reduce_mean(tf.square(found - tf.reshape(target, [-1, 2])))

    specs = [
        tf.TensorSpec([None, 4], tf.int64, "ids"),
        tf.TensorSpec([None, 4, 2], tf.float32, "target"),
    ]
    return specs, build, make


def embedding_steps(
    lookup: Lookup, make: Callable[[], Any], *, batch: int = 4
) -> dict[str, np.ndarray]:
    """Weights and slots after one pass over the data."""
    step = build_step(embedding_model(lookup, make))
    for start in range(0, len(IDS), batch):
        step(IDS[start : start + batch], TARGETS[start : start + batch])
    return {n: v.numpy() for group in step.variables().values() for n, v in group.items()}
