"""A network of `keras.applications` in a tower: its names, its weights, its statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from towerpack.nn import frozen_statistics
from towerpack.training import SmartInit
from towerpack.zoo._keras import KerasApplication
from towers import gradient, numbers, runner, spec, tower_of, variables


def small(
    *, include_top: bool, weights: Any, input_shape: Any, pooling: str, name: Any = None
) -> Any:
    """A network with the arguments that those of `keras.applications` have."""
    assert not include_top and weights is None and pooling == "avg"
    image = keras.Input(input_shape)
    x = keras.layers.Conv2D(4, 3, 2, name="conv1")(image)
    x = keras.layers.ReLU()(keras.layers.BatchNormalization(name="bn1")(x))
    x = keras.layers.BatchNormalization(name="bn2")(keras.layers.Conv2D(6, 3, name="conv2")(x))
    return keras.Model(image, keras.layers.GlobalAveragePooling2D()(x), name=name)


X = numbers(4, 32, 32, 3)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning:keras")
def test_it_is_keras_s_network(tmp_path: Path) -> None:
    theirs = small(include_top=False, weights=None, input_shape=(32, 32, 3), pooling="avg")
    rng = np.random.default_rng(0)
    theirs.set_weights([rng.uniform(0.5, 1, w.shape) for w in theirs.get_weights()])
    theirs.save_weights(tmp_path / "w.weights.h5")
    tower = tower_of(lambda x: KerasApplication("small", x, small), spec(None, 32, 32, 3))
    tower.trace(is_training=False)
    SmartInit(tmp_path / "w.weights.h5").load(tower.store.named_variables())
    expected = np.asarray(theirs(X, training=False))
    np.testing.assert_allclose(runner(tower, "graph")(X)["y"], expected, rtol=1e-4)
    names = [f"small/{variable.path}" for variable in theirs.variables]
    assert sorted(variables(tower)) == sorted(names)


@pytest.mark.parametrize("frozen", [False, True])
def test_its_statistics_follow_the_flag(frozen: bool) -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        with frozen_statistics("small/.*" if frozen else "no"):
            return KerasApplication("small", x, small)

    tower = tower_of(build, spec(4, 32, 32, 3))
    tower.trace(is_training=True)
    before = variables(tower)
    predicted = runner(tower, "graph")(X)["y"]
    assert all(np.array_equal(value, before[name]) for name, value in variables(tower).items())
    trained = runner(tower, "graph", is_training=True)(X)["y"]
    moved = {name for name, value in variables(tower).items() if np.any(value != before[name])}
    statistics = {name for name in before if "/moving_" in name}
    assert moved == (set() if frozen else statistics)
    assert np.array_equal(trained, predicted) == frozen
    [found] = gradient(tower, ["small/conv1/kernel"], tf.constant(X))
    assert np.any(found)
