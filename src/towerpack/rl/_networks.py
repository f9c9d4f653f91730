from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import tensorflow as tf

from towerpack._core.errors import ConfigError
from towerpack.nn import Conv2D, FullyConnected
from towerpack.rl._actions import linear

Network = Callable[[tf.Tensor], tf.Tensor]
Host = Callable[[np.ndarray], np.ndarray]

_ACTIVATIONS: Mapping[str, tuple[Any, Callable[[np.ndarray], np.ndarray]]] = {
    "tanh": (tf.nn.tanh, np.tanh),
    "relu": (tf.nn.relu, lambda x: np.maximum(x, 0)),
}


class MLP:
    """Multilayer perceptron with layers `fc0`, `fc1` and so on.

    Args:
        units: Number of units of each layer.
        activation: 'tanh' or 'relu'.

    Raises:
        ConfigError: `activation` is unknown.
    """

    def __init__(self, units: Sequence[int] = (64, 64), activation: str = "tanh") -> None:
        if activation not in _ACTIVATIONS:
            raise ConfigError(
                f"The activation of an MLP must be 'tanh' or 'relu', got {activation!r}."
            )
        self.units, self.activation = list(units), activation

    def __call__(self, observation: tf.Tensor) -> tf.Tensor:
        x = tf.cast(observation, tf.float32)
        for i, units in enumerate(self.units):
            x = _ACTIVATIONS[self.activation][0](linear(f"fc{i}", x, units, math.sqrt(2.0)))
        return x

    def on_host(self, variables: Mapping[str, tf.Variable], scope: str) -> Host:
        # For few rows, NumPy is up to twenty times as fast as a TensorFlow call.
        layers = [f"{scope}/{n}" for n in (*(f"fc{i}" for i in range(len(self.units))), "head")]
        *hidden, (last, offset) = [
            (variables[f"{n}/kernel"].numpy(), variables[f"{n}/bias"].numpy()) for n in layers
        ]
        log_std = variables.get(f"{scope}/log_std")
        deviations = None if log_std is None else log_std.numpy()[None]
        activation = _ACTIVATIONS[self.activation][1]

        def run(observations: np.ndarray) -> np.ndarray:
            x = observations.reshape(len(observations), -1).astype(np.float32, copy=False)
            for kernel, bias in hidden:
                x = activation(x @ kernel + bias)
            x = x @ last + offset
            return x if deviations is None else np.hstack([x, deviations.repeat(len(x), 0)])

        return run


def nature_cnn(observation: tf.Tensor) -> tf.Tensor:
    """Compute features [B, 512] of images with the convolutional network of Mnih et al. 2015.

    Args:
        observation: Images with values 0 to 255, [B, C, H, W] or [B, H, W, C].
    """
    x = tf.cast(observation, tf.float32) / 255.0
    shape: Any = x.shape
    if shape[1] < shape[3]:  # frames or channels come first
        x = tf.transpose(x, [0, 2, 3, 1])
    for i, (filters, size, stride) in enumerate([(32, 8, 4), (64, 4, 2), (64, 3, 1)]):
        x = Conv2D(
            f"conv{i}", x, filters, size, strides=stride, padding="valid", activation=tf.nn.relu
        )
    return FullyConnected("fc0", x, 512, activation=tf.nn.relu)


def network_for(space: gym.Space[Any], mlp: MLP) -> Network:
    if not isinstance(space, gym.spaces.Box):
        raise ConfigError(
            f"The observation space of the environment must be of type Box, got {space!r}.",
            fix="wrap the environment in gymnasium.wrappers.FlattenObservation",
        )
    return nature_cnn if len(space.shape) == 3 and space.dtype == np.uint8 else mlp
