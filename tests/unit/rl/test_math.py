"""The mathematics against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf

from towerpack.rl import math as rl


def column(*values: float) -> tf.Tensor:
    """One environment, [T, 1]."""
    return tf.constant([[value] for value in values], tf.float32)


def flags(*values: int) -> tf.Tensor:
    return tf.constant([[bool(value)] for value in values])


def row(tensor: tf.Tensor) -> list[float]:
    return tf.reshape(tensor, [-1]).numpy().tolist()


# Name, the value, and what it is by hand.
CASES = {
    # 1 + .5 (2 + .5 (3 + .5 · 8))
    "returns": (
        rl.discounted_returns(column(1, 2, 3), column(0.5, 0.5, 0.5), tf.constant([8.0])),
        [3.75, 5.5, 7.0],
    ),
    "returns, an end": (
        rl.discounted_returns(column(1, 2, 3), column(0.5, 0, 0.5), tf.constant([8.0])),
        [2.0, 2.0, 7.0],
    ),
    # 1 + .5 · 2 + .25 · 20; 2 + .5 · 3 + .25 · 40; 3 + .5 · 40
    "two steps": (
        rl.n_step_returns(column(1, 2, 3), column(0.5, 0.5, 0.5), column(10, 20, 40), 2),
        [7.0, 13.5, 23.0],
    ),
    "one step": (
        rl.n_step_returns(column(1, 2, 3), column(0.5, 0, 0.5), column(10, 20, 40), 1),
        [6.0, 2.0, 23.0],
    ),
    # Errors: 1 + .5 · 4 − 2 = 1, 1 + .5 · 6 − 4 = 0, 1 + .5 · 8 − 6 = −1; then × .5 · .5 backwards.
    "gae": (
        rl.gae(
            column(1, 1, 1), column(2, 4, 6), column(4, 6, 8), flags(0, 0, 0), flags(0, 0, 0),
            discount=0.5, lambda_=0.5,
        ),
        [0.9375, -0.25, -1.0],
    ),
    "gae, lists": (
        rl.gae([[1]], [[2]], [[4]], [[False]], [[False]], discount=0.5, lambda_=0.5), [1.0]
    ),
    # Step 0 terminates: 1 − 2. Step 1 is cut at a state worth 10: 1 + .5 · 10 − 4.
    "gae, ends": (
        rl.gae(
            column(1, 1, 1), column(2, 4, 6), column(99, 10, 8), flags(1, 0, 0), flags(0, 1, 0),
            discount=0.5, lambda_=0.5,
        ),
        [-1.0, 2.0, -1.0],
    ),
    "categorical": (
        rl.categorical_log_prob(tf.math.log([[1.0, 3.0], [2.0, 2.0]]), tf.constant([1, 0])),
        [math.log(0.75), math.log(0.5)],
    ),
    "entropy": (rl.categorical_entropy(tf.zeros([1, 4])), [math.log(4)]),
    # Deviations 1 and 2; one and half a deviation away.
    "gaussian": (
        rl.gaussian_log_prob(
            tf.constant([[0.0, 1.0]]), tf.math.log([[1.0, 2.0]]), tf.constant([[1.0, 2.0]])
        ),
        [-math.log(2 * math.pi) - math.log(2) - 0.5 - 0.125],
    ),
    "gaussian entropy": (
        rl.gaussian_entropy(tf.math.log([[1.0, 2.0]])),
        [math.log(2 * math.pi * math.e) + math.log(2)],
    ),
    "a2c": (rl.a2c_loss(tf.constant([-1.0, -2.0]), tf.constant([3.0, -1.0])), [0.5]),
    # Ratios 2, 2, 1/2, 1/2: the first gain is cut to 1.2, the last to 0.8; losses are not.
    "ppo": (
        rl.ppo_loss(
            tf.math.log([2.0, 2.0, 0.5, 0.5]), tf.zeros(4), tf.constant([1.0, -1, 1, -1]), 0.2
        ),
        [-(1.2 - 2.0 + 0.5 - 0.8) / 4],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_by_hand(name: str) -> None:
    value, by_hand = CASES[name]
    np.testing.assert_allclose(row(value), by_hand, rtol=1e-5)


def test_vtrace_by_hand_and_on_policy() -> None:
    half = column(0.5, 0.5)
    logs = tf.math.log(column(4, 0.5))
    found = rl.vtrace(column(1, 2), half, column(2, 4), column(4, 8), logs)
    # Errors 1 · (1 + 2 − 2) = 1 and .5 · (2 + 4 − 4) = 1; c = 1, .5.
    assert row(found.values) == [2 + 1 + 0.5 * 1, 5.0]
    assert row(found.advantages) == [1 + 0.5 * 5 - 2, 0.5 * (2 + 0.5 * 8 - 4)]
    # On policy the targets are the discounted returns.
    now = rl.vtrace(column(1, 2), half, column(2, 4), column(4, 8), column(0, 0))
    returns = rl.discounted_returns(column(1, 2), half, tf.constant([8.0]))
    np.testing.assert_allclose(now.values, returns)


@pytest.mark.parametrize(
    ("selector", "best"), [(None, 8.0), ([[5.0, 1.0], [0.0, 0.0]], 2.0)], ids=["max", "double"]
)
def test_dqn_by_hand(selector: list[list[float]] | None, best: float) -> None:
    q = tf.constant([[1.0, 2.0], [0.0, 3.0]])
    target = tf.constant([[2.0, 8.0], [5.0, 5.0]])
    loss, errors = rl.dqn_loss(
        q, tf.constant([0, 1]), tf.constant([0.25, 3.5]), tf.constant([0.5, 0.0]), target,
        None if selector is None else tf.constant(selector), tf.constant([1.0, 2.0]),
    )  # fmt: skip
    first = 0.25 + 0.5 * best - 1.0
    assert row(errors) == [first, 0.5]
    huber = abs(first) - 0.5 if abs(first) > 1 else 0.5 * first**2
    np.testing.assert_allclose(loss, (huber + 2 * 0.125) / 2)


def test_time_may_be_any_length_and_no_gradient_leaves_targets() -> None:
    rng = np.random.default_rng(0)
    for steps in (1, 2, 7, 64):
        rewards, factors = rng.normal(size=(steps, 3)), rng.uniform(size=(steps, 3))
        expected, following = [], np.ones(3)
        for t in reversed(range(steps)):
            following = rewards[t] + factors[t] * following
            expected.insert(0, following)
        np.testing.assert_allclose(
            rl.discounted_returns(rewards, factors, np.ones(3)), expected, rtol=1e-10
        )
    values = tf.constant([[1.0, 2.0]])
    with tf.GradientTape() as tape:
        tape.watch(values)
        loss, _ = rl.dqn_loss(tf.zeros([1, 2]), [0], tf.ones(1), tf.ones(1), values)
    assert tape.gradient(loss, values) is None
