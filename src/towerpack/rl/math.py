"""Returns, advantages, action distributions and losses, as pure functions of tensors.

Letters in shapes: T time steps, N environments, B rows of a batch, and A actions or components of
an action.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import tensorflow as tf

__all__ = [
    "VTrace", "a2c_loss", "categorical_entropy", "categorical_log_prob", "discounted_returns",
    "dqn_loss", "gae", "gaussian_entropy", "gaussian_log_prob", "n_step_returns", "ppo_loss",
    "vtrace"
]  # fmt: skip

_LOG_TAU = math.log(2 * math.pi)


def discounted_returns(rewards: tf.Tensor, discounts: tf.Tensor, bootstrap: tf.Tensor) -> tf.Tensor:
    """Compute discounted returns [T, …], r_t + d_t G_{t+1} (Sutton & Barto 2018, equation 3.9).

    Args:
        rewards, discounts: Rewards and discount factors [T, …]; 0 at the end of every episode.
        bootstrap: Value of the state after the last step [...].
    """
    return _backwards(*_floats(rewards, discounts, bootstrap))


def n_step_returns(
    rewards: tf.Tensor, discounts: tf.Tensor, next_values: tf.Tensor, n: int
) -> tf.Tensor:
    """Compute n-step returns [T, …]; the last n - 1 are shorter (Sutton & Barto 2018, eq. 7.1).

    Args:
        rewards, discounts: Rewards and discount factors [T, …]; 0 at the end of every episode.
        next_values: Values [T, …] of the states after each step.
        n: Number of rewards.
    """
    rewards, discounts, next_values = _floats(rewards, discounts, next_values)
    returns = result = next_values
    for _ in range(n):
        returns = rewards + discounts * returns
        returns, result = tf.concat([returns[1:], next_values[-1:]], 0), returns
    return result


def gae(
    rewards: tf.Tensor,
    values: tf.Tensor,
    next_values: tf.Tensor,
    terminated: tf.Tensor,
    truncated: tf.Tensor,
    *,
    discount: float,
    lambda_: float,
) -> tf.Tensor:
    """Compute generalized advantages [T, N] (Schulman et al. 2016, arXiv:1506.02438, equation 16).

    A truncated episode is bootstrapped from its last state (Pardo et al. 2018, arXiv:1712.00378).

    Args:
        rewards, terminated, truncated: Results of the steps [T, N].
        values: Values [T, N] of the states before each step.
        next_values: Values [T, N] of the states after each step. At the end of an episode, this is
            the value of its last state, not of the next episode's first state.
        discount: Discount factor.
        lambda_: 0 gives one-step TD errors, 1 gives returns minus values.
    """
    rewards, values, next_values = _floats(rewards, values, next_values)
    alive = tf.cast(tf.logical_not(terminated), values.dtype)
    going_on = tf.cast(tf.logical_not(tf.logical_or(terminated, truncated)), values.dtype)
    errors = rewards + discount * alive * next_values - values
    return _backwards(errors, discount * lambda_ * going_on, tf.zeros_like(values[0]))


class VTrace(NamedTuple):
    """Targets for the value function, and advantages for the policy gradient, [T, N]."""

    values: tf.Tensor
    advantages: tf.Tensor


def vtrace(
    rewards: tf.Tensor,
    discounts: tf.Tensor,
    values: tf.Tensor,
    next_values: tf.Tensor,
    log_ratios: tf.Tensor,
    *,
    clip_rho: float = 1.0,
    clip_c: float = 1.0,
) -> VTrace:
    """Compute V-trace targets and advantages, for experience from an older policy.

    Espeholt et al. 2018 (arXiv:1802.01561), equations 1 and 4. The results have no gradient.

    Args:
        rewards, discounts: Rewards and discount factors [T, N]; 0 at the end of every episode.
        values, next_values: See `gae`.
        log_ratios: Log-probabilities [T, N] of the actions under the current policy, minus those
            under the policy that chose them.
        clip_rho: Maximum weight of a TD error.
        clip_c: Maximum factor by which a TD error affects the previous step.
    """
    rewards, discounts, values, next_values, log_ratios = _floats(
        rewards, discounts, values, next_values, log_ratios
    )
    ratios = tf.exp(log_ratios)
    rho, c = tf.minimum(clip_rho, ratios), tf.minimum(clip_c, ratios)
    errors = rho * (rewards + discounts * next_values - values)
    targets = values + _backwards(errors, discounts * c, tf.zeros_like(values[0]))
    # Target of the next step, or the value of the state after the last step
    later = tf.concat([targets[1:], next_values[-1:]], 0)
    advantages = rho * (rewards + discounts * later - values)
    return VTrace(tf.stop_gradient(targets), tf.stop_gradient(advantages))


def _floats(*values: Any) -> list[Any]:
    tensors = [tf.convert_to_tensor(value) for value in values]
    return [t if t.dtype.is_floating else tf.cast(t, tf.float32) for t in tensors]


def _backwards(terms: tf.Tensor, factors: tf.Tensor, last: tf.Tensor) -> tf.Tensor:
    """Compute y_t = terms_t + factors_t y_{t+1} for all t, with y_T = last. Shape: [T, …].

    Uses log2(T) operations on whole tensors (Hillis & Steele 1986). A loop over time is slower.
    """
    terms = tf.concat([terms, last[None]], 0)
    factors = tf.concat([factors, tf.zeros_like(last)[None]], 0)
    length = terms.shape[0]
    if length is None:
        raise ValueError("The number of time steps must be known when the graph is built.")
    shift = 1
    while shift < length:
        still = tf.zeros_like(terms[:shift])
        terms = terms + factors * tf.concat([terms[shift:], still], 0)
        factors = factors * tf.concat([factors[shift:], still], 0)
        shift *= 2
    return terms[:-1]


def categorical_log_prob(logits: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
    """Compute log-probabilities [B] of actions under a softmax of logits.

    Args:
        logits, actions: Logits [B, A], and integer actions [B].
    """
    return -tf.nn.sparse_softmax_cross_entropy_with_logits(actions, logits)


def categorical_entropy(logits: tf.Tensor) -> tf.Tensor:
    """Compute entropies [B] of a softmax of logits, in nats.

    Args:
        logits: Logits [B, A].
    """
    return -tf.reduce_sum(tf.nn.softmax(logits) * tf.nn.log_softmax(logits), -1)


def gaussian_log_prob(mean: tf.Tensor, log_std: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
    """Compute log-densities [B] of actions under independent normal distributions.

    Args:
        mean, log_std, actions: Means, log standard deviations and actions [B, A].
    """
    z = (actions - mean) * tf.exp(-log_std)
    return -tf.reduce_sum(0.5 * (tf.square(z) + _LOG_TAU) + log_std, -1)


def gaussian_entropy(log_std: tf.Tensor) -> tf.Tensor:
    """Compute entropies [B] of independent normal distributions, in nats.

    Args:
        log_std: Log standard deviations [B, A].
    """
    return tf.reduce_sum(log_std + 0.5 * (_LOG_TAU + 1.0), -1)


def a2c_loss(log_prob: tf.Tensor, advantages: tf.Tensor) -> tf.Tensor:
    """Compute the policy-gradient loss, a scalar (Mnih et al. 2016, arXiv:1602.01783, section 4).

    Args:
        log_prob: Log-probabilities [B] of the actions.
        advantages: Advantages [B]. Their gradient is ignored.
    """
    return -tf.reduce_mean(log_prob * tf.stop_gradient(advantages))


def ppo_loss(
    log_prob: tf.Tensor, old_log_prob: tf.Tensor, advantages: tf.Tensor, clip: Any
) -> tf.Tensor:
    """Compute the clipped policy loss, a scalar (Schulman et al. 2017, arXiv:1707.06347, eq. 7).

    Args:
        log_prob: Log-probabilities [B] of the actions under the current policy.
        old_log_prob: Log-probabilities [B] under the policy that chose the actions.
        advantages: Advantages [B].
        clip: Largest distance from 1 of the ratio of both probabilities.
    """
    ratio = tf.exp(log_prob - old_log_prob)
    clipped = tf.clip_by_value(ratio, 1.0 - clip, 1.0 + clip)
    return -tf.reduce_mean(tf.minimum(ratio * advantages, clipped * advantages))


def dqn_loss(
    q: tf.Tensor,
    actions: tf.Tensor,
    rewards: tf.Tensor,
    discounts: tf.Tensor,
    target_q: tf.Tensor,
    selector_q: tf.Tensor | None = None,
    weights: tf.Tensor | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Compute the Q-learning loss, a scalar, and the TD errors [B] (Mnih et al. 2015).

    The loss is the Huber loss of the TD errors with threshold 1.

    Args:
        q: Values [B, A] of all actions in the states before the step.
        actions: Integer actions [B].
        rewards: Rewards [B], or discounted sums of several rewards.
        discounts: Discount factors [B] of the states after the step; 0 if the episode terminated.
        target_q: Values [B, A] of all actions after the step, from the target network.
        selector_q: Same values from the trained network, to select the action in double
            Q-learning (van Hasselt et al. 2016, arXiv:1509.06461, equation 4).
        weights: Weights [B] of the rows, such as those of prioritized replay; None for 1.
    """
    selector = target_q if selector_q is None else selector_q
    best = tf.gather(target_q, tf.argmax(selector, -1), batch_dims=1)
    targets = tf.stop_gradient(rewards + discounts * best)
    errors = targets - tf.gather(q, actions, batch_dims=1)
    size = tf.abs(errors)
    losses = tf.where(size <= 1.0, 0.5 * tf.square(errors), size - 0.5)
    if weights is not None:
        losses = losses * weights
    return tf.reduce_mean(losses), errors
