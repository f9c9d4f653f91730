"""What functions of TensorFlow 1 find and make in a tower: collections, `get_variable`."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from towerpack.nn import (
    BatchNorm,
    Conv2D,
    FullyConnected,
    auto_reuse_scope,
    freeze_variables,
    register_layer,
    reuse_scope,
    scope,
)
from towers import MODES, numbers, runner, spec, tower_of, traced, variables

V1 = tf.compat.v1
KEYS = V1.GraphKeys
X = numbers(4, 6)

outside = keras.Sequential([keras.layers.Dense(6), keras.layers.BatchNormalization()])
outside.build((None, 6))
unbuilt = keras.layers.Dense(6)
frozen = keras.layers.Dense(6, trainable=False)
held = tf.Variable(2.0)


def at_once(x: tf.Tensor) -> tf.Tensor:
    with freeze_variables(skip_collection=True):
        return FullyConnected("frozen", x, 6)


def in_a_branch(x: tf.Tensor) -> tf.Tensor:
    return tf.cond(tf.reduce_all(x < 99), lambda: FullyConnected("fc", x, 6), lambda: x)


KINDS: dict[str, Any] = {
    "by name": lambda x: BatchNorm("bn", FullyConnected("fc", x, 6)),
    "in a branch": in_a_branch,
    "skipped": at_once,
    "made inside": lambda x: keras.layers.BatchNormalization()(keras.layers.Dense(6)(x)),
    "frozen inside": lambda x: keras.layers.Dense(6, trainable=False)(x),
    "outside": lambda x: outside(x),
    "unbuilt": lambda x: unbuilt(x),
    "frozen outside": lambda x: frozen(x),
    "Variable": lambda x: x * tf.Variable(tf.ones([6]), name="gain") * held,
    "get_variable": lambda x: (
        x * V1.get_variable("w", [6]) + V1.get_variable("m", trainable=False, initializer=1.0)
    ),
}


def mixed(x: tf.Tensor) -> tf.Tensor:
    with scope("first"):
        x = KINDS["by name"](x) + KINDS["made inside"](x) + KINDS["get_variable"](x)
    return FullyConnected("fc", frozen(unbuilt(outside(x))) * held, 6)


# ------------------------------------------------------------------ collections


@pytest.mark.parametrize("mode", MODES[:2])
@pytest.mark.parametrize("kind", [*KINDS, "mixed"])
def test_collections_hold_each_variable_of_a_tower_once_in_each_call(kind: str, mode: str) -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        y = make(x)
        found.append((V1.trainable_variables(), V1.global_variables()))
        decay = [tf.nn.l2_loss(v) for v in V1.get_collection(KEYS.TRAINABLE_VARIABLES)]
        return 0.0 * tf.reduce_sum(y) + tf.add_n([tf.constant(1.0), *decay])

    make = KINDS.get(kind, mixed)
    found: list[Any] = []
    tower = tower_of(build)
    for is_training in (True, False, True):
        tower.trace(is_training=is_training)
    y = runner(tower, mode, is_training=True)(X)["y"]
    trained = tower.store.trainable()
    values = [v for name, v in variables(tower).items() if name in trained]
    assert float(y) == pytest.approx(1 + sum(0.5 * (v**2).sum() for v in values), rel=1e-5)
    names = (
        sorted(map(id, trained.values())),
        sorted(map(id, tower.store.named_variables().values())),
    )
    assert all((sorted(map(id, t)), sorted(map(id, g))) == names for t, g in found)


def test_collections_go_by_scope_and_grow_with_the_tower() -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        counts.append(len(V1.trainable_variables()))
        for name in ("gen", "discrim"):
            with scope(name):
                x = FullyConnected("fc", x, 6)
                here = V1.trainable_variables(V1.get_variable_scope().name)
                assert [v.name for v in here] == [f"{name}/fc/kernel:0", f"{name}/fc/bias:0"]
            counts.append(len(V1.trainable_variables()))
        with scope("bn"):
            x = BatchNorm("bn", x)
        moving = [v for v in V1.model_variables("bn/") if not v.trainable]
        assert [v.name for v in moving] == ["bn/bn/moving_mean:0", "bn/bn/moving_variance:0"]
        return x

    counts: list[int] = []
    tower = tower_of(build)
    traced(tower)
    traced(tower)
    assert counts == [0, 2, 4] * 2
    assert not V1.trainable_variables()


# ------------------------------------------------------------------ get_variable


@register_layer
def Weighted(x: tf.Tensor) -> tf.Tensor:
    return x * V1.get_variable("w", [6])


@auto_reuse_scope
def shared(x: tf.Tensor) -> tf.Tensor:
    return Weighted("a", x)


def in_scopes(x: tf.Tensor) -> tf.Tensor:
    for name in ("a", "b"):
        with scope(name):
            x = x * V1.get_variable("w", [6])
    return x


def in_layers(x: tf.Tensor) -> tf.Tensor:
    return Weighted("b", Weighted("a", x))


def asked_for(func: Any) -> Any:
    def build(x: tf.Tensor) -> tf.Tensor:
        with V1.variable_scope("", reuse=V1.AUTO_REUSE):
            return func(x)

    return build


def reused(x: tf.Tensor) -> tf.Tensor:
    x = Weighted("a", x)
    with reuse_scope():
        return Weighted("a", x)


def reused_by_tensorflow(x: tf.Tensor) -> tf.Tensor:
    with scope("a"):
        x = x * V1.get_variable("w", [6])
    with V1.variable_scope("a", reuse=True):
        return x * V1.get_variable("w", [6])


BOTH, ONE = ["a/w", "b/w"], ["a/w"]


@pytest.mark.parametrize("mode", MODES[:2])
@pytest.mark.parametrize(
    ("func", "names"),
    [
        (in_scopes, BOTH),
        (in_layers, BOTH),
        (asked_for(in_scopes), BOTH),
        (asked_for(in_layers), BOTH),
        (reused, ONE),
        (reused_by_tensorflow, ONE),
        (lambda x: shared(shared(x)), ONE),
    ],
)
def test_get_variable_is_of_its_scope_and_shared_only_if_asked(
    func: Any, names: list[str], mode: str
) -> None:
    tower = tower_of(func)
    for _ in range(2):
        tower.trace(is_training=True)
    weights = variables(tower)
    assert list(weights) == names
    y = runner(tower, mode)(X)["y"]
    np.testing.assert_allclose(y, X * weights[names[0]] * weights[names[-1]], rtol=1e-5)


def test_get_variable_twice_is_refused_also_after_eager_calls() -> None:
    V1.get_variable("eager", [1])  # From here on TensorFlow takes AUTO_REUSE for granted.

    def twice(x: tf.Tensor) -> tf.Tensor:
        return x * V1.get_variable("w", [6]) * V1.get_variable("w", [6])

    def unknown(x: tf.Tensor) -> tf.Tensor:
        with reuse_scope():
            return x * V1.get_variable("w", [6])

    with pytest.raises(ValueError, match="w already exists"):
        traced(tower_of(twice))
    with pytest.raises(ValueError, match="w does not exist"):
        traced(tower_of(unknown))
    assert traced(tower_of(lambda x: Conv2D("c", x, 1, 1), spec(None, 2, 2, 1)))[0] == "c/kernel"
