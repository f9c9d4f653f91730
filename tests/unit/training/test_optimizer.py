"""One face for two kinds of optimizers."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from towerpack import ConfigError
from towerpack.training._optimizer import adapt


def variables() -> dict[str, tf.Variable]:
    return {"a/kernel": tf.Variable([[1.0, 2.0]]), "b/kernel": tf.Variable([3.0])}


def step(adapter: Any, gradients: list[Any]) -> None:
    tf.function(lambda: adapter.apply(gradients), autograph=False)()


@pytest.mark.parametrize(
    "optimizer",
    [keras.optimizers.SGD(0.5), tf.compat.v1.train.GradientDescentOptimizer(0.5), "sgd"],
    ids=["keras", "compat", "name"],
)
def test_a_step_by_hand(optimizer: Any) -> None:
    adapter = adapt(optimizer)
    ours = variables()
    adapter.build(ours)
    adapter.hyper_params()["learning_rate"].set(0.25)
    step(adapter, [tf.constant([[4.0, 8.0]]), None])
    np.testing.assert_array_equal(ours["a/kernel"].numpy(), [[0.0, 0.0]])
    np.testing.assert_array_equal(ours["b/kernel"].numpy(), [3.0])
    assert "learning_rate" in adapter.variables()


def test_slots_carry_the_names_of_their_variables_in_every_process_alike() -> None:
    names = []
    for _ in range(2):
        adapter = adapt(keras.optimizers.Adam(0.1))
        adapter.build(variables())
        names.append(list(adapter.variables()))
    assert names[0] == names[1]
    assert {"iteration", "learning_rate", "a_kernel_momentum", "b_kernel_velocity"} <= {*names[0]}
    compat = adapt(tf.compat.v1.train.AdamOptimizer(0.1))
    compat.build(variables())
    assert {"learning_rate", "a/kernel/m", "b/kernel/v", "beta1_power"} <= {*compat.variables()}


def test_a_schedule_is_no_number_to_set() -> None:
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    assert adapt(keras.optimizers.SGD(schedule)).hyper_params() == {}


def test_scaling_the_loss() -> None:
    adapter = adapt(keras.optimizers.SGD(0.5), scale_loss=True)
    adapter.build(variables())
    assert float(adapter.scale_loss(tf.constant(1.0))) == 2.0**15
    assert list(adapter.hyper_params()) == ["learning_rate"]
    own = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5), initial_scale=4.0)
    own_adapter = adapt(own, scale_loss=True)
    own_adapter.build(variables())
    assert float(own_adapter.scale_loss(tf.constant(1.0))) == 4.0
    with pytest.raises(ConfigError, match="needs loss scaling"):
        adapt(tf.compat.v1.train.AdamOptimizer(0.1), scale_loss=True)


def test_what_is_no_optimizer() -> None:
    with pytest.raises(ConfigError, match="call the class"):
        adapt(keras.optimizers.Adam)
    with pytest.raises(ConfigError, match="is not an optimizer"):
        adapt(0.1)
    used = keras.optimizers.SGD(0.1)
    adapt(used).build(variables())
    with pytest.raises(ConfigError, match="has been used"):
        adapt(used).build(variables())
