"""`tf.layers` of old programs, compared with Keras's layers on the same weights."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from towerpack import LayerError
from towerpack import tf1 as v1
from towerpack.nn import argscope, get_current_tower_context
from towers import numbers, runner, tower_of, traced, variables

LAYERS = keras.layers
L = v1.layers
CASES: list[tuple[Any, Any]] = [
    (
        lambda x: L.conv2d(x, 4, 3, 2, activation=tf.nn.relu),
        lambda: LAYERS.Conv2D(4, 3, 2, activation="relu"),
    ),
    (lambda x: L.max_pooling2d(x, 2, 2), lambda: LAYERS.MaxPooling2D(2, 2)),
    (lambda x: L.average_pooling2d(x, 3, 1, "same"), lambda: LAYERS.AvgPool2D(3, 1, "same")),
    (lambda x: L.flatten(x), LAYERS.Flatten),
    (lambda x: L.dense(L.flatten(x), 5), lambda: LAYERS.Dense(5)),
    (lambda x: L.batch_normalization(x), LAYERS.BatchNormalization),
]


@pytest.mark.parametrize(("ours", "theirs"), CASES)
def test_each_computes_what_keras_does(ours: Any, theirs: Any) -> None:
    x = numbers(2, 6, 6, 3)
    tower = tower_of(ours, tf.TensorSpec([None, 6, 6, 3], tf.float32, "x"))
    traced(tower)
    layer = theirs()
    given = x.reshape(2, -1) if isinstance(layer, LAYERS.Dense) else x
    layer.build(given.shape)
    weights = [v for n, v in variables(tower).items()]
    layer.set_weights(sorted(weights, key=lambda w: -w.ndim) if len(weights) == 2 else weights)
    found = runner(tower, "graph")(x)["y"]
    np.testing.assert_allclose(found, layer(given), rtol=1e-4, atol=1e-5)


def test_names_scopes_and_training() -> None:
    seen: list[bool] = []

    def build(x: tf.Tensor) -> tf.Tensor:
        training = get_current_tower_context().is_training
        with argscope([L.conv2d], padding="same", activation=tf.nn.relu):
            x = L.conv2d(x, 4, 3, name="first")
            x = L.conv2d(x, 4, 3)
            x = L.conv2d(x, 4, 3)
        dropped = L.dropout(x, 0.5, training=training)
        seen.append(dropped is not x and "stateless" in dropped.op.name)
        assert x.shape[1:] == [6, 6, 4]
        return dropped

    tower = tower_of(build, tf.TensorSpec([None, 6, 6, 3], tf.float32, "x"))
    names = [f"{n}/{w}" for n in ("first", "conv2d", "conv2d_1") for w in ("kernel", "bias")]
    assert traced(tower) == names
    tower.trace(is_training=False)
    assert seen == [True, False]


def test_the_rest_is_that_of_tensorflow() -> None:
    assert v1.train.AdamOptimizer is tf.compat.v1.train.AdamOptimizer
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = v1.no_such_name
    with pytest.raises(LayerError, match=r"batch, features"):
        traced(tower_of(lambda x: L.dense(x, 3), tf.TensorSpec([None, 4, 3], tf.float32, "x")))
