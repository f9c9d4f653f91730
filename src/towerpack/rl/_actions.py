"""Probability distributions of actions, for discrete and continuous action spaces.

A network computes the parameters [B, k] of the distribution. `head`, `mode` (the most likely
action), `log_prob` and `entropy` are TensorFlow functions for towers. `noise`, `sample` and
`for_environment`, which converts actions to the form of the environment, use NumPy.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import keras
import numpy as np
import tensorflow as tf

from towerpack._core.errors import ConfigError
from towerpack.nn import FullyConnected
from towerpack.rl import math


class Categorical:
    """Categorical distribution over n actions, with logits as parameters."""

    log_prob = staticmethod(math.categorical_log_prob)
    entropy = staticmethod(math.categorical_entropy)

    def __init__(self, space: gym.spaces.Discrete) -> None:
        self.n, self._start = int(space.n), int(space.start)
        self.spec = tf.TensorSpec([None], tf.int64, "action")

    def head(self, features: tf.Tensor) -> tf.Tensor:
        return linear("head", features, self.n, gain=0.01)

    def noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        # The action with the largest sum of logit and Gumbel noise is a sample.
        return rng.gumbel(size=(*shape, self.n)).astype(np.float32)

    def sample(self, parameters: np.ndarray, noise: np.ndarray) -> np.ndarray:
        return (parameters + noise).argmax(-1)

    def for_environment(self, actions: np.ndarray) -> np.ndarray:
        return actions + self._start

    def mode(self, parameters: tf.Tensor) -> tf.Tensor:
        return tf.argmax(parameters, -1) + self._start


class Gaussian:
    """Independent normal distribution of each component. Environments get clipped actions."""

    def __init__(self, space: gym.spaces.Box) -> None:
        self._space = space
        self._size = int(np.prod(space.shape))
        self.spec = tf.TensorSpec([None, self._size], tf.float32, "action")

    def head(self, features: tf.Tensor) -> tf.Tensor:
        mean = linear("head", features, self._size, gain=0.01)
        # Standard deviations do not depend on the state.
        log_std = tf.compat.v1.get_variable("log_std", initializer=tf.zeros([self._size]))
        return tf.concat([mean, tf.broadcast_to(log_std, tf.shape(mean))], -1)

    def noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return rng.standard_normal((*shape, self._size), np.float32)

    def sample(self, parameters: np.ndarray, noise: np.ndarray) -> np.ndarray:
        mean, log_std = np.split(parameters, 2, -1)
        return mean + np.exp(log_std) * noise

    def for_environment(self, actions: np.ndarray) -> np.ndarray:
        shaped = actions.reshape(-1, *self._space.shape)
        return np.clip(shaped, self._space.low, self._space.high).astype(self._space.dtype)

    def mode(self, parameters: tf.Tensor) -> tf.Tensor:
        space = self._space
        shaped = tf.reshape(parameters[:, : self._size], [-1, *space.shape])
        return tf.cast(tf.clip_by_value(shaped, space.low, space.high), space.dtype)

    def log_prob(self, parameters: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
        mean, log_std = tf.split(parameters, 2, -1)
        return math.gaussian_log_prob(mean, log_std, actions)

    def entropy(self, parameters: tf.Tensor) -> tf.Tensor:
        return math.gaussian_entropy(parameters[:, self._size :])


Actions = Categorical | Gaussian


def actions_of(space: gym.Space[Any], agent: str, *, continuous: bool = True) -> Actions:
    if isinstance(space, gym.spaces.Discrete):
        return Categorical(space)
    if continuous and isinstance(space, gym.spaces.Box):
        return Gaussian(space)
    kinds = "Discrete or Box" if continuous else "Discrete"
    raise ConfigError(
        f"The action space of the environment for {agent} must be of type {kinds}, got {space!r}.",
        fix="convert the actions with gymnasium.ActionWrapper"
        + ("" if continuous else ", or use PPO or A2C for Box"),
    )


def linear(name: str, x: tf.Tensor, units: int, gain: float) -> tf.Tensor:
    return FullyConnected(name, x, units, kernel_initializer=keras.initializers.Orthogonal(gain))
