"""Small towers for tests: build one, run it, look at what it has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from scaling import SCALE
from towerpack.tower import TowerFunction

# Compiling takes the most time; `test_layers.test_layers_are_compiled` always does it.
MODES = ["eager", "graph", "xla"] if SCALE == 1 else ["eager", "graph"]


def spec(*shape: int | None, name: str = "x", dtype: Any = tf.float32) -> tf.TensorSpec:
    return tf.TensorSpec(shape, dtype, name)


def tower_of(
    func: Callable[..., Any], *specs: tf.TensorSpec, seed: int = 0, policy: str | None = None
) -> TowerFunction:
    """A tower of a function that gives any tensor: its mean is the cost, it is the output 'y'."""
    from towerpack.nn import expose

    def build(*tensors: tf.Tensor) -> tf.Tensor:
        y = func(*tensors)
        expose("y", y)
        return tf.reduce_mean(tf.cast(y, tf.float32))

    # Layers that the function holds are found through `build`'s closure, as in a user's program.
    return TowerFunction(build, specs or [spec(None, 6)], seed=seed, dtype_policy=policy)


def runner(tower: TowerFunction, mode: str, *, is_training: bool = False) -> Callable[..., Any]:
    """Calls the tower in one of the `MODES` and gives its outputs by name."""

    def call(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        step = tf.constant(0, tf.int64) if is_training else None
        return tower(*tensors, is_training=is_training, step=step).outputs

    if mode == "eager":
        return call
    return tf.function(call, autograph=False, jit_compile=mode == "xla")


def variables(tower: TowerFunction) -> dict[str, np.ndarray]:
    return {name: variable.numpy() for name, variable in tower.store.named_variables().items()}


def traced(tower: TowerFunction) -> list[str]:
    """The names of a tower's variables after a training trace."""
    tower.trace(is_training=True)
    return list(tower.store.named_variables())


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def fill(tower: TowerFunction, seed: int = 1) -> dict[str, np.ndarray]:
    """Give all variables random values, biases included; variances stay positive."""
    for i, (name, variable) in enumerate(tower.store.named_variables().items()):
        value = numbers(*variable.shape, seed=seed + i)
        variable.assign(np.abs(value) + 0.5 if name.endswith("variance") else value)
    return variables(tower)


def gradient(tower: TowerFunction, names: Sequence[str], *arrays: Any) -> list[tf.Tensor]:
    chosen = [tower.store.named_variables()[name] for name in names]
    with tf.GradientTape() as tape:
        cost = tower(*arrays).cost
    return tape.gradient(cost, chosen)
