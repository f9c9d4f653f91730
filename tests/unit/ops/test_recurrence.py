"""The LSTM computes what Keras's does, gradients too, in one part or several."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from towerpack.ops.recurrence import lstm

N, T, CHANNELS, UNITS = 3, 7, 5, 4


@pytest.mark.parametrize("in_graph", [False, True])
def test_it_is_the_lstm_of_keras(in_graph: bool) -> None:
    rng = np.random.default_rng(0)
    x, c, h, wanted = (
        tf.constant(rng.normal(size=size), tf.float32)
        for size in ((N, T, CHANNELS), (N, UNITS), (N, UNITS), (N, T, UNITS))
    )
    layer = keras.layers.LSTM(UNITS, return_sequences=True, return_state=True)
    layer.build((N, T, CHANNELS))
    kernel, recurrent, bias = (v.value for v in layer.trainable_variables)
    watched = [x, c, h, kernel, recurrent, bias]

    def ours() -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch([x, c, h])
            gates = tf.transpose(tf.tensordot(x, kernel, 1), [1, 0, 2]) + bias
            first, middle = lstm(gates[:3], tf.identity(recurrent), c, h)
            last, end = lstm(gates[3:], tf.identity(recurrent), middle, first[-1])
            y = tf.transpose(tf.concat([first, last], 0), [1, 0, 2])
            cost = tf.reduce_sum(y * wanted) + tf.reduce_sum(end**2)
        return [y, end, *tape.gradient(cost, watched)]

    def theirs() -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch([x, c, h])
            y, _, end = layer(x, initial_state=[h, c])
            cost = tf.reduce_sum(y * wanted) + tf.reduce_sum(end**2)
        return [y, end, *tape.gradient(cost, watched)]

    got = (tf.function(ours, autograph=False) if in_graph else ours)()
    for found, expected in zip(got, theirs(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)


def test_a_single_step_is_the_step_of_a_sequence() -> None:
    rng = np.random.default_rng(1)
    gates, kernel, c, h = (
        tf.constant(rng.normal(size=size), tf.float32)
        for size in ((2, N, 4 * UNITS), (UNITS, 4 * UNITS), (N, UNITS), (N, UNITS))
    )
    both, end = lstm(gates, kernel, c, h)
    one, middle = lstm(gates[:1], kernel, c, h)
    two, last = lstm(gates[1:], kernel, middle, one[0])
    np.testing.assert_allclose(both, tf.concat([one, two], 0), atol=1e-6)
    np.testing.assert_allclose(end, last, atol=1e-6)
