"""Returns, advantages, distributions of actions and losses, as pure functions of tensors.

T time steps, N environments, B rows of a batch, A actions (or components of one). In row t are the
reward of step t, the value of the state in which it was taken (`values`) and of the one it reached
before any reset (`next_values`), and the discount of that one: 0 where the episode has terminated.
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
    """Discounted sums of rewards, r_t + d_t G_{t+1}, [T, …] (Sutton & Barto 2018, equation 3.9).

    Args:
        rewards: [T, …].
        discounts: [T, …]; 0 at the end of every episode.
        bootstrap: Value of the state after the last step, [...].
    """
    return _backwards(*_floats(rewards, discounts, bootstrap))


def n_step_returns(
    rewards: tf.Tensor, discounts: tf.Tensor, next_values: tf.Tensor, n: int
) -> tf.Tensor:
    """Returns of n rewards, then the value of the state reached.

    Sutton & Barto 2018, equation 7.1; all [T, …]. At the end of the T steps fewer rewards count.
    """
    rewards, discounts, next_values = _floats(rewards, discounts, next_values)
    returns = result = next_values
    for _ in range(n):
        # Of k rewards from the next step on; after the last step there is its state's value alone.
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
    """Generalised advantage estimates.

    Schulman et al. 2016 (arXiv:1506.02438), equation 16; all [T, N]. A truncated episode is
    bootstrapped from its last state (Pardo et al. 2018, arXiv:1712.00378), a terminated one is
    worth nothing after its end. `lambda_=0` gives one-step TD errors, 1 returns less the values.
    """
    rewards, values, next_values = _floats(rewards, values, next_values)
    alive = tf.cast(tf.logical_not(terminated), values.dtype)
    going_on = tf.cast(tf.logical_not(tf.logical_or(terminated, truncated)), values.dtype)
    errors = rewards + discount * alive * next_values - values
    return _backwards(errors, discount * lambda_ * going_on, tf.zeros_like(values[0]))


class VTrace(NamedTuple):
    """Targets for the values, and advantages for the policy's gradient, [T, N]."""

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
    """Off-policy corrected values, for experience from an older policy.

    Espeholt et al. 2018 (arXiv:1802.01561), equations 1 and 4. No gradient flows through.

    Args:
        rewards: [T, N], as all others.
        discounts: 0 at the end of every episode.
        values: See above.
        next_values: See above.
        log_ratios: Log-probability of the action now, less that when it was taken.
        clip_rho: Bounds the weight of an error.
        clip_c: Bounds the weight with which later errors are handed back.
    """
    rewards, discounts, values, next_values, log_ratios = _floats(
        rewards, discounts, values, next_values, log_ratios
    )
    ratios = tf.exp(log_ratios)
    rho, c = tf.minimum(clip_rho, ratios), tf.minimum(clip_c, ratios)
    errors = rho * (rewards + discounts * next_values - values)
    targets = values + _backwards(errors, discounts * c, tf.zeros_like(values[0]))
    # Where an episode goes on, the target of the next step; after the last one, its state's value.
    later = tf.concat([targets[1:], next_values[-1:]], 0)
    advantages = rho * (rewards + discounts * later - values)
    return VTrace(tf.stop_gradient(targets), tf.stop_gradient(advantages))


def _floats(*given: Any) -> list[Any]:
    tensors = [tf.convert_to_tensor(value) for value in given]
    return [t if t.dtype.is_floating else tf.cast(t, tf.float32) for t in tensors]


def _backwards(terms: tf.Tensor, factors: tf.Tensor, last: tf.Tensor) -> tf.Tensor:
    """The sequence y_t = terms_t + factors_t y_{t+1}, [T, …], from y_T = last.

    In log2(T) steps over whole tensors (Hillis & Steele 1986): a loop over time would start an
    operation for each step.
    """
    terms = tf.concat([terms, last[None]], 0)
    factors = tf.concat([factors, tf.zeros_like(last)[None]], 0)
    length = terms.shape[0]
    if length is None:
        raise ValueError("the number of time steps must be known when the graph is built")
    shift = 1
    while shift < length:
        still = tf.zeros_like(terms[:shift])
        terms = terms + factors * tf.concat([terms[shift:], still], 0)
        factors = factors * tf.concat([factors[shift:], still], 0)
        shift *= 2
    return terms[:-1]


# ---------------------------------------------------------------------- distributions of actions


def categorical_log_prob(logits: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
    """Log-probabilities of actions, [B], under a softmax of logits [B, A]."""
    return -tf.nn.sparse_softmax_cross_entropy_with_logits(actions, logits)


def categorical_entropy(logits: tf.Tensor) -> tf.Tensor:
    """Entropies in nats, [B], of a softmax of logits [B, A]."""
    return -tf.reduce_sum(tf.nn.softmax(logits) * tf.nn.log_softmax(logits), -1)


def gaussian_log_prob(mean: tf.Tensor, log_std: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
    """Log-densities of actions [B, A] under independent normal distributions; [B]."""
    z = (actions - mean) * tf.exp(-log_std)
    return -tf.reduce_sum(0.5 * (tf.square(z) + _LOG_TAU) + log_std, -1)


def gaussian_entropy(log_std: tf.Tensor) -> tf.Tensor:
    """Entropies in nats, [B], of independent normal distributions of log_std [B, A]."""
    return tf.reduce_sum(log_std + 0.5 * (_LOG_TAU + 1.0), -1)


# ---------------------------------------------------------------------- losses


def a2c_loss(log_prob: tf.Tensor, advantages: tf.Tensor) -> tf.Tensor:
    """The policy gradient's loss, scalar (Mnih et al. 2016, arXiv:1602.01783, section 4).

    Of [B] both. No gradient flows into the advantages.
    """
    return -tf.reduce_mean(log_prob * tf.stop_gradient(advantages))


def ppo_loss(
    log_prob: tf.Tensor, old_log_prob: tf.Tensor, advantages: tf.Tensor, clip: Any
) -> tf.Tensor:
    """The clipped surrogate loss, scalar.

    Schulman et al. 2017 (arXiv:1707.06347), equation 7, with the sign of a loss.

    Args:
        log_prob: Of the actions taken, now, [B].
        old_log_prob: The same when they were taken, [B].
        advantages: [B].
        clip: How far from 1 a ratio of the two probabilities still counts.
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
    """The Huber loss of the TD error of Q-learning (threshold 1), scalar; and the errors, [B].

    Mnih et al. 2015; with `selector_q`, double Q-learning (van Hasselt et al. 2016,
    arXiv:1509.06461, equation 4); with `weights`, those of prioritised replay (Schaul et al. 2016,
    arXiv:1511.05952).

    Args:
        q: Values of all actions where the action was taken, [B, A].
        actions: Integers, [B].
        rewards: Of one step or the discounted sum of several, [B].
        discounts: Of the state reached; 0 where the episode has ended, [B].
        target_q: Values of all actions there, by the target network, [B, A].
        selector_q: The same by the network itself, which then selects the action.
        weights: Of the rows; None for 1, [B].
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
