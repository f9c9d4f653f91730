"""One face for two kinds of optimizers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from towerpack import ConfigError
from towerpack.training.optim.proxy_and_loss_scale import adapt
from warm_python import warm_python


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


def every_keras_optimizer() -> dict[str, Any]:
    """By class, with what makes more slots than usual."""
    base = keras.optimizers.Optimizer
    made: dict[str, Any] = {}
    for name, cls in vars(keras.optimizers).items():
        if name == "LossScaleOptimizer":
            made[name] = cls(keras.optimizers.Nadam(0.1))
        elif name == "MultiOptimizer":
            sgd = keras.optimizers.SGD(0.1, momentum=0.9)
            choice = keras.optimizers.OptimizerMap(keras.optimizers.Nadam(0.1), {"a/.*": sgd})
            made[name] = cls(choice)
        elif isinstance(cls, type) and issubclass(cls, base) and cls is not base:
            made[name] = cls(0.1)
            made[f"{name}, averaged"] = cls(0.1, use_ema=True, gradient_accumulation_steps=2)
    return made


def slots(optimizer: Any) -> dict[str, list[int]]:
    adapter = adapt(optimizer)
    ours = {"a/kernel": tf.Variable(tf.ones([4, 3])), "b/kernel": tf.Variable(tf.ones([4, 3]))}
    adapter.build(ours)
    return {name: variable.shape.as_list() for name, variable in adapter.variables().items()}


def test_slots_of_every_keras_optimizer_have_the_names_they_have_in_a_fresh_process() -> None:
    program = f"""
import json, sys
sys.path[:0] = {[str(Path(__file__).parent), *sys.path]!r}
from {Path(__file__).stem} import every_keras_optimizer, slots
print(json.dumps({{name: slots(made) for name, made in every_keras_optimizer().items()}}))
"""
    for _ in range(3):  # What a process has made before.
        keras.layers.Dense(3).build((None, 2))
        keras.random.SeedGenerator()
        slots(keras.optimizers.Nadam(0.1))
        keras.Variable(1.0)
    fresh = subprocess.run(
        [*warm_python(), "-c", program], capture_output=True, text=True, check=True
    ).stdout
    here = {name: slots(made) for name, made in every_keras_optimizer().items()}
    assert {"Nadam", "Muon", "Adafactor", "Ftrl", "LossScaleOptimizer", "MultiOptimizer"} <= {*here}
    assert json.loads(fresh) == here


def test_each_rate_of_several_optimizers_can_be_set() -> None:
    inner = [keras.optimizers.SGD(0.5), keras.optimizers.SGD(0.25)]
    choice = keras.optimizers.OptimizerMap(inner[0], {"a/.*": inner[1]})
    adapter = adapt(keras.optimizers.MultiOptimizer(choice))
    ours = variables()
    adapter.build(ours)
    rates = adapter.hyper_params()
    assert {name: rate.get() for name, rate in rates.items()} == {
        "learning_rate_1": 0.25,
        "learning_rate_2": 0.5,
    }
    rates["learning_rate_1"].set(1.0)
    step(adapter, [tf.constant([[1.0, 2.0]]), tf.constant([2.0])])
    np.testing.assert_array_equal(ours["a/kernel"].numpy(), [[0.0, 0.0]])
    np.testing.assert_array_equal(ours["b/kernel"].numpy(), [2.0])


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


def test_a_name_that_keras_does_not_know_is_refused() -> None:
    assert list(adapt("SGD").hyper_params()) == ["learning_rate"]
    with pytest.raises(ConfigError, match="no optimizer 'adma'") as caught:
        adapt("adma")
    assert "'adam'" in str(caught.value)


def test_what_is_no_optimizer() -> None:
    with pytest.raises(ConfigError, match="create an instance"):
        adapt(keras.optimizers.Adam)
    with pytest.raises(ConfigError, match="must be an optimizer object"):
        adapt(0.1)
    used = keras.optimizers.SGD(0.1)
    adapt(used).build(variables())
    with pytest.raises(ConfigError, match="has been used"):
        adapt(used).build(variables())
