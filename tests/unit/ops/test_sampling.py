"""Tokens are drawn as often as their probability says, within top k and top p."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from towerpack.ops.sampling import choose, uniform_at

PROBABILITIES = np.array([0.1, 0.4, 0.05, 0.3, 0.15])


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "expected"),
    [
        (1.0, 0, 1.0, PROBABILITIES),
        (0.5, 0, 1.0, PROBABILITIES**2 / (PROBABILITIES**2).sum()),
        (1.0, 2, 1.0, np.array([0, 4, 0, 3, 0]) / 7),
        (1.0, 0, 0.69, np.array([0, 4, 0, 3, 0]) / 7),
        (1.0, 0, 0.71, np.array([0, 8, 0, 6, 3]) / 17),
        (0.0, 0, 1.0, np.array([0, 1, 0, 0, 0])),
    ],
)
def test_frequencies(temperature: float, top_k: int, top_p: float, expected: np.ndarray) -> None:
    num = 20_000
    u = (np.arange(num) + 0.5) / num
    logits = tf.constant(np.log(PROBABILITIES)[None].repeat(num, 0) + 3, tf.float32)
    drawn = choose(logits, tf.constant(u, tf.float32), temperature, top_k, top_p)
    np.testing.assert_allclose(np.bincount(drawn, minlength=5) / num, expected, atol=2e-4)


def test_random_numbers_have_places() -> None:
    whole = uniform_at(7, tf.constant([0, 0]), 200).numpy()
    for start, length in ((1, 1), (63, 2), (64, 100), (150, 50)):
        part = uniform_at(7, tf.constant([start, start]), length)
        np.testing.assert_array_equal(part, whole[:, start : start + length])
    assert not np.array_equal(whole, uniform_at(8, tf.constant([0, 0]), 200))
    assert not np.array_equal(whole[0], whole[1])
    assert abs(whole.mean() - 0.5) < 0.05
