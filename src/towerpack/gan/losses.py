"""Costs of the two players, as pure functions.

`logits` are what the discriminator (or critic) gives before any sigmoid, [batch, …]: one for each
image, or one for each patch. All are means over the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from towerpack._core.errors import LayerError

__all__ = [
    "Costs", "Loss", "began", "categorical_information", "cycle_consistency",
    "gaussian_information", "gradient_penalty", "hinge", "least_squares", "minimax",
    "non_saturating", "wasserstein"
]  # fmt: skip


class Costs(NamedTuple):
    """Scalars to be minimized, each by its player."""

    generator: tf.Tensor
    discriminator: tf.Tensor


Loss = Callable[[tf.Tensor, tf.Tensor], Costs]


def minimax(logits_real: tf.Tensor, logits_fake: tf.Tensor) -> Costs:
    """The game of Goodfellow et al. 2014, equation 1: what one pays is what the other gets.

    The generator's gradient vanishes where the discriminator is sure.
    """
    fake = tf.reduce_mean(tf.nn.softplus(logits_fake))  # -log(1 - D(G(z)))
    return Costs(-fake, tf.reduce_mean(tf.nn.softplus(-logits_real)) + fake)


def non_saturating(logits_real: tf.Tensor, logits_fake: tf.Tensor) -> Costs:
    """Goodfellow et al. 2014, section 3: the generator maximizes log D(G(z)) instead."""
    _, discriminator = minimax(logits_real, logits_fake)
    return Costs(tf.reduce_mean(tf.nn.softplus(-logits_fake)), discriminator)


def least_squares(logits_real: tf.Tensor, logits_fake: tf.Tensor) -> Costs:
    """Mao et al. 2017, equation 9: distances from 1 (real) and 0 (generated)."""
    real = tf.reduce_mean(tf.square(logits_real - 1.0))
    fake = tf.reduce_mean(tf.square(logits_fake))
    return Costs(0.5 * tf.reduce_mean(tf.square(logits_fake - 1.0)), 0.5 * (real + fake))


def wasserstein(logits_real: tf.Tensor, logits_fake: tf.Tensor) -> Costs:
    """Arjovsky et al. 2017, equation 2: a difference of means.

    The critic must be kept Lipschitz: add `gradient_penalty` to its cost, or clip its weights with
    `VariableAssignment(optimizer, lambda v: tf.clip_by_value(v, -0.01, 0.01))`.
    """
    fake = tf.reduce_mean(logits_fake)
    return Costs(-fake, fake - tf.reduce_mean(logits_real))


def hinge(logits_real: tf.Tensor, logits_fake: tf.Tensor) -> Costs:
    """Miyato et al. 2018, equations 16 and 17: no reward beyond a margin of 1."""
    real = tf.reduce_mean(tf.nn.relu(1.0 - logits_real))
    fake = tf.reduce_mean(tf.nn.relu(1.0 + logits_fake))
    return Costs(-tf.reduce_mean(logits_fake), real + fake)


def gradient_penalty(
    critic: Callable[[tf.Tensor], tf.Tensor], real: tf.Tensor, fake: tf.Tensor, seed: Any
) -> tf.Tensor:
    """Mean of (‖∇ critic(x)‖ - 1)², at x between real and generated data.

    Gulrajani et al. 2017, equation 3, without its factor of 10. The critic must treat each
    datapoint by itself: no batch normalisation.

    Args:
        critic: Gives logits; it shares its layers with its other calls (`auto_reuse_scope`).
        real: [batch, …].
        fake: As many, of the same shape.
        seed: Of the places in between: `get_current_tower_context().step_seed('penalty')`.

    Raises:
        LayerError: The critic's logits do not depend on what it is given.
    """
    shape: Any = tf.shape(real)
    ones = tf.ones([tf.rank(real) - 1], tf.int32)
    share = tf.random.stateless_uniform(tf.concat([shape[:1], ones], 0), seed, dtype=real.dtype)
    between = real + share * (fake - real)
    with tf.GradientTape() as tape:
        tape.watch(between)
        logits = critic(between)
    slope: Any = tape.gradient(logits, between)
    if slope is None:
        raise LayerError("gradient_penalty: the critic's logits do not depend on its argument.")
    squares = tf.reduce_sum(tf.square(tf.reshape(slope, [shape[0], -1])), 1)
    # The root has no derivative at 0.
    return tf.reduce_mean(tf.square(tf.sqrt(squares + 1e-12) - 1.0))


def began(
    error_real: tf.Tensor, error_fake: tf.Tensor, k: Any, *, gamma: float = 0.5, rate: float = 0.001
) -> tuple[Costs, tf.Tensor, tf.Tensor]:
    """Costs balanced by proportional control (Berthelot et al. 2017, sections 3.3 to 3.5).

    Args:
        error_real: Scalar: the discriminator's error in reconstructing real data.
        error_fake: Scalar: likewise of generated data.
        k: In [0, 1]: the weight of the latter now; it begins at 0.
        gamma: Diversity: the ratio of the errors to be held.
        rate: How fast `k` follows (λ_k).

    Returns:
        The costs, the next `k`, and a measure of convergence.
    """
    balance = gamma * error_real - error_fake
    k_next = tf.stop_gradient(tf.clip_by_value(k + rate * balance, 0.0, 1.0))
    return Costs(error_fake, error_real - k * error_fake), k_next, error_real + tf.abs(balance)


def categorical_information(logits: tf.Tensor, code: tf.Tensor) -> tf.Tensor:
    """A lower bound, in nats, of what an image tells of its uniform categorical code.

    Chen et al. 2016 (InfoGAN), equation 5; both players maximize it.

    Args:
        logits: [batch, classes]: what is guessed of the code from the image.
        code: [batch, classes]: one-hot.
    """
    entropy = math.log(logits.shape[-1] or 1)
    return entropy - tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(code, logits))


def gaussian_information(mean: tf.Tensor, code: tf.Tensor, *, stddev: float = 1.0) -> tf.Tensor:
    """Likewise of a continuous code, without its entropy: mean of log N(code; mean, stddev²).

    Args:
        mean: [batch, codes]: what is guessed of the codes.
        code: As large. Logarithms are added up over the codes.
        stddev: Of the guess.
    """
    log_density = -0.5 * tf.square((code - mean) / stddev) - math.log(stddev * math.sqrt(math.tau))
    return tf.reduce_mean(tf.reduce_sum(log_density, 1))


def cycle_consistency(there: tf.Tensor, and_back: tf.Tensor) -> tf.Tensor:
    """Mean absolute difference (Zhu et al. 2017, CycleGAN, equation 2, one of its two terms)."""
    return tf.reduce_mean(tf.abs(there - and_back))
