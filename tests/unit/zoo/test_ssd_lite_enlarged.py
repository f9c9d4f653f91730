"""Enlarged feature maps and their gradient, against TensorFlow's own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from towerpack.zoo.ssd_lite import _enlarged


@pytest.mark.parametrize("size", [(8, 6), (7, 6), (8, 5), (7, 5)])
def test_it_equals_the_nearest_neighbor_of_tensorflow(size: tuple[int, int]) -> None:
    random = np.random.default_rng(0)
    x = tf.constant(random.normal(size=(2, 4, 3, 5)), tf.float32)
    dy = tf.constant(random.normal(size=(2, *size, 5)), tf.float32)

    def results(enlarge: Callable[[tf.Tensor], tf.Tensor]) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = enlarge(x)
        return [y, tape.gradient(y, x, dy)]

    ours = results(lambda x: _enlarged(x, size))
    for value, expected in zip(
        ours, results(lambda x: tf.image.resize(x, size, "nearest")), strict=True
    ):
        np.testing.assert_array_equal(value, expected)
