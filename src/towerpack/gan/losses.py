"""Losses of generator and discriminator as pure functions.

`logits` are the outputs of the discriminator (or critic) without a sigmoid, [batch, …]: one per
image, or one per patch. All costs are means over the batch.
"""

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
    """Scalar costs, one for each player to minimize."""

    generator: tf.Tensor
    discriminator: tf.Tensor


Loss = Callable[[tf.Tensor, tf.Tensor], Costs]


def minimax(logits_real: tf.Tensor, logits_fake: tf.Tensor) -> Costs:
    """Return the costs of the minimax game (Goodfellow et al. 2014, equation 1).

    The generator's gradient vanishes if the discriminator is certain.

    Args:
        logits_real, logits_fake: Logits for real and for generated data.
    """
    fake = tf.reduce_mean(tf.nn.softplus(logits_fake))  # -log(1 - D(G(z)))
    return Costs(-fake, tf.reduce_mean(tf.nn.softplus(-logits_real)) + fake)


def non_saturating(logits_real: tf.Tensor, logits_fake: tf.Tensor) -> Costs:
    """Return the non-saturating costs: the generator maximizes log D(G(z)).

    Goodfellow et al. 2014, section 3.

    Args:
        logits_real, logits_fake: Logits for real and for generated data.
    """
    _, discriminator = minimax(logits_real, logits_fake)
    return Costs(tf.reduce_mean(tf.nn.softplus(-logits_fake)), discriminator)


def least_squares(logits_real: tf.Tensor, logits_fake: tf.Tensor) -> Costs:
    """Return least-squares costs: logits should be 1 for real and 0 for generated data.

    Mao et al. 2017, equation 9.

    Args:
        logits_real, logits_fake: Logits for real and for generated data.
    """
    real = tf.reduce_mean(tf.square(logits_real - 1.0))
    fake = tf.reduce_mean(tf.square(logits_fake))
    return Costs(0.5 * tf.reduce_mean(tf.square(logits_fake - 1.0)), 0.5 * (real + fake))


def wasserstein(logits_real: tf.Tensor, logits_fake: tf.Tensor) -> Costs:
    """Return the costs of a Wasserstein GAN (Arjovsky et al. 2017, equation 2).

    The critic must be Lipschitz continuous: add `gradient_penalty` to its cost, or clip its weights
    with `VariableAssignment(optimizer, lambda v: tf.clip_by_value(v, -0.01, 0.01))`.

    Args:
        logits_real, logits_fake: Logits for real and for generated data.
    """
    fake = tf.reduce_mean(logits_fake)
    return Costs(-fake, fake - tf.reduce_mean(logits_real))


def hinge(logits_real: tf.Tensor, logits_fake: tf.Tensor) -> Costs:
    """Return the hinge costs with a margin of 1 (Miyato et al. 2018, equations 16 and 17).

    Args:
        logits_real, logits_fake: Logits for real and for generated data.
    """
    real = tf.reduce_mean(tf.nn.relu(1.0 - logits_real))
    fake = tf.reduce_mean(tf.nn.relu(1.0 + logits_fake))
    return Costs(-tf.reduce_mean(logits_fake), real + fake)


def gradient_penalty(
    critic: Callable[[tf.Tensor], tf.Tensor], real: tf.Tensor, fake: tf.Tensor, seed: Any
) -> tf.Tensor:
    """Return the gradient penalty of a critic: the mean of (‖∇ critic(x)‖ - 1)².

    The points x lie at random between real and generated data. Gulrajani et al. 2017, equation 3,
    without the factor of 10. The critic must not use batch normalization or any other layer
    that combines the datapoints of a batch.

    Args:
        critic: Function from data to logits that shares layers between calls (`auto_reuse_scope`).
        real, fake: Real and generated data, both of the same shape [batch, …].
        seed: Seed of the points: `get_current_tower_context().step_seed('penalty')`.

    Raises:
        LayerError: The critic's logits do not depend on its argument.
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
        raise LayerError("In gradient_penalty, the critic's logits must depend on its argument.")
    squares = tf.reduce_sum(tf.square(tf.reshape(slope, [shape[0], -1])), 1)
    # The square root has no derivative at 0.
    return tf.reduce_mean(tf.square(tf.sqrt(squares + 1e-12) - 1.0))


def began(
    error_real: tf.Tensor, error_fake: tf.Tensor, k: Any, *, gamma: float = 0.5, rate: float = 0.001
) -> tuple[Costs, tf.Tensor, tf.Tensor]:
    """Return the costs of BEGAN (Berthelot et al. 2017, sections 3.3 to 3.5).

    Args:
        error_real, error_fake: Scalar reconstruction errors of real and of generated data.
        k: Weight of `error_fake` in the discriminator's cost, in [0, 1]; 0 in the first step.
        gamma: Desired ratio of `error_fake` to `error_real`.
        rate: Learning rate of `k` (λ_k).

    Returns:
        The costs, `k` for the next step, and the convergence measure of the paper.
    """
    balance = gamma * error_real - error_fake
    k_next = tf.stop_gradient(tf.clip_by_value(k + rate * balance, 0.0, 1.0))
    return Costs(error_fake, error_real - k * error_fake), k_next, error_real + tf.abs(balance)


def categorical_information(logits: tf.Tensor, code: tf.Tensor) -> tf.Tensor:
    """Return a lower bound, in nats, of the information of an image about a categorical code.

    Chen et al. 2016 (InfoGAN), equation 5, for a uniform code. Both players maximize the bound.

    Args:
        logits: Prediction of the code from the image, [batch, classes].
        code: One-hot code, [batch, classes].
    """
    entropy = math.log(logits.shape[-1] or 1)
    return entropy - tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(code, logits))


def gaussian_information(mean: tf.Tensor, code: tf.Tensor, *, stddev: float = 1.0) -> tf.Tensor:
    """Return the InfoGAN bound for continuous codes: the mean of log N(code; mean, stddev²).

    Same as `categorical_information`, but without the entropy of the code.

    Args:
        mean: Prediction of the codes from the image, [batch, codes].
        code: Codes, [batch, codes]. Logarithms are summed over the codes.
        stddev: Standard deviation of the prediction.
    """
    log_density = -0.5 * tf.square((code - mean) / stddev) - math.log(stddev * math.sqrt(math.tau))
    return tf.reduce_mean(tf.reduce_sum(log_density, 1))


def cycle_consistency(original: tf.Tensor, and_back: tf.Tensor) -> tf.Tensor:
    """Return the mean absolute difference between images and their reconstructions.

    One of the two terms of equation 2 of Zhu et al. 2017 (CycleGAN).

    Args:
        original: Images.
        and_back: Images after translation to the other domain and back.
    """
    return tf.reduce_mean(tf.abs(original - and_back))
