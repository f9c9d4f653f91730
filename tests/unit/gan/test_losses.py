"""Costs against numbers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from towerpack import LayerError
from towerpack.gan import frechet_distance, losses

# softplus(log 3) = log 4, softplus(-log 3) = log 4/3.
L3, A, B = math.log(3), math.log(4), math.log(4 / 3)


@pytest.mark.parametrize(
    ("loss", "real", "fake", "generator", "discriminator"),
    [
        (losses.minimax, [L3, L3], [-L3, L3], -(A + B) / 2, B + (A + B) / 2),
        (losses.non_saturating, [L3, L3], [-L3, L3], (A + B) / 2, B + (A + B) / 2),
        (losses.least_squares, [1.0, 3.0], [1.0, 3.0], 0.5 * 2, 0.5 * 2 + 0.5 * 5),
        (losses.wasserstein, [1.0, 3.0], [5.0, -4.0], -0.5, 0.5 - 2),
        (losses.hinge, [0.5, 3.0], [-2.0, 1.0], 0.5, 0.25 + 1.0),
    ],
)
def test_costs(loss: Any, real: Any, fake: Any, generator: float, discriminator: float) -> None:
    costs = loss(tf.constant(real)[:, None], tf.constant(fake)[:, None])
    assert float(costs.generator) == pytest.approx(generator)
    assert float(costs.discriminator) == pytest.approx(discriminator)


def test_the_penalty_of_a_plane_is_known_anywhere_and_can_be_trained() -> None:
    weights = tf.Variable([[3.0], [4.0]])
    real, fake = tf.random.stateless_normal([2, 5, 2], [1, 2])

    def critic(x: tf.Tensor) -> tf.Tensor:
        return x @ weights

    with tf.GradientTape() as tape:
        penalty = losses.gradient_penalty(critic, real, fake, [0, 0])
    assert float(penalty) == pytest.approx((5.0 - 1.0) ** 2)
    # d/dw (‖w‖ - 1)² = 2 (‖w‖ - 1) w / ‖w‖
    np.testing.assert_allclose(tape.gradient(penalty, weights), [[4.8], [6.4]], rtol=1e-5)
    seen = []
    losses.gradient_penalty(lambda x: seen.append(x) or critic(x), real, fake, [0, 0])
    share = (seen[0] - real) / (fake - real)
    np.testing.assert_allclose(share[:, 0], share[:, 1], rtol=1e-3)  # one place for each datapoint
    assert 0 <= np.min(share) < np.max(share) <= 1
    with pytest.raises(LayerError, match="must depend on its argument"):
        losses.gradient_penalty(lambda x: critic(real), real, fake, [0, 0])


@pytest.mark.parametrize("critic", ["constant weights", "dead units", "a plateau"])
def test_the_penalty_of_a_flat_critic_is_one_and_its_gradients_are_finite(critic: str) -> None:
    """The root of 0 has no derivative: without care every weight would be NaN at once."""
    kernel = tf.Variable([[0.0], [0.0]] if critic == "constant weights" else [[3.0], [4.0]])
    real, fake = tf.random.stateless_uniform([2, 5, 2], [1, 2])

    def logits(x: tf.Tensor) -> tf.Tensor:
        if critic == "dead units":
            return tf.nn.relu(x @ kernel - 100.0)
        return tf.clip_by_value(x @ kernel, 50.0, 60.0) if critic == "a plateau" else x @ kernel

    with tf.GradientTape() as tape:
        penalty = losses.gradient_penalty(logits, real, fake, [0, 0])
    assert float(penalty) == pytest.approx(1.0, abs=1e-4)
    assert np.all(np.isfinite(tape.gradient(penalty, kernel)))


@pytest.mark.parametrize(
    ("real", "fake", "k", "expected"),
    [
        (9.0, 0.0, 0.9, 1.0),  # never above 1
        (0.0, 9.0, 0.1, 0.0),  # nor below 0
        (1.0, 0.5, 0.0, 0.0),  # in balance it stays, at its bounds too
        (1.0, 0.5, 1.0, 1.0),
        (1.0, 0.5, 0.5, 0.5),
        (2.0, 0.5, 0.0, 0.5),
        (1.0, 1.0, 1.0, 0.5),
    ],
)
def test_the_weight_of_began_stays_between_0_and_1(
    real: float, fake: float, k: float, expected: float
) -> None:
    error, weight = tf.Variable(real), tf.Variable(k)
    with tf.GradientTape() as tape:
        _, k_next, _ = losses.began(error, tf.constant(fake), weight, gamma=0.5, rate=1.0)
    assert float(k_next) == pytest.approx(expected)
    assert tape.gradient(k_next, [error, weight]) == [None, None]


def test_began_holds_the_ratio_of_errors() -> None:
    costs, k, measure = losses.began(tf.constant(2.0), tf.constant(0.5), 0.25, rate=0.5)
    assert float(costs.generator) == 0.5
    assert float(costs.discriminator) == 2.0 - 0.25 * 0.5
    assert float(k) == 0.25 + 0.5 * (0.5 * 2.0 - 0.5)
    assert float(measure) == 2.0 + 0.5
    assert float(losses.began(tf.constant(9.0), tf.constant(0.0), 1.0, rate=1.0)[1]) == 1.0


def test_information() -> None:
    code = tf.one_hot([0, 1, 2, 3], 4)
    known = losses.categorical_information(100.0 * code, code)
    assert float(known) == pytest.approx(math.log(4))
    assert float(losses.categorical_information(0.0 * code, code)) == pytest.approx(0.0, abs=1e-6)
    off = losses.gaussian_information(tf.zeros([3, 2]), tf.ones([3, 2]), stddev=0.5)
    assert float(off) == pytest.approx(2 * (-2.0 - math.log(0.5 * math.sqrt(2 * math.pi))))
    assert float(losses.cycle_consistency(tf.ones([2, 2]), tf.constant([[1.0, 0], [2, 3]]))) == 1.0


def test_the_distance_of_normal_distributions() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4000, 3))
    x = np.linalg.solve(np.linalg.cholesky(np.cov(x, rowvar=False)), (x - x.mean(0)).T).T
    turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    a, b = np.diag([1.0, 2.0, 3.0]), turn @ np.diag([2.0, 0.0, 1.0]) @ turn.T
    # Of matrices that commute the trace is that of (√A - √B)²; a turn of both changes nothing.
    assert frechet_distance(x @ turn, x @ turn * 3 + [2, 0, 0]) == pytest.approx(4 + 3 * 4)
    assert frechet_distance(x @ a, x @ a) == pytest.approx(0, abs=1e-6)
    values = np.linalg.eigvals((a @ a) @ (b @ b)).real
    expected = np.trace(a @ a + b @ b) - 2 * np.sqrt(values.clip(0)).sum()
    assert frechet_distance(x @ a, x @ b) == pytest.approx(expected)
    with pytest.raises(ValueError, match="must get features"):
        frechet_distance(x, x[:, :2])
