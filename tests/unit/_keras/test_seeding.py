"""Keras layers that hang on the model: what they draw comes from the run's seed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from towerpack.tower import TowerFunction
from towers import numbers, spec, tower_of, variables

Dense = keras.layers.Dense


def unbuilt() -> keras.Model:
    return keras.Sequential([Dense(4), keras.layers.Dropout(0.5), Dense(4, use_bias=False)])


def built() -> keras.Model:
    layers = [Dense(4), keras.layers.Dropout(0.5), Dense(4, use_bias=False)]
    return keras.Sequential([keras.Input((6,)), *layers])


def recurrent() -> keras.Model:
    sequence = keras.layers.Reshape((3, 2))
    return keras.Sequential([keras.Input((6,)), sequence, keras.layers.LSTM(4, dropout=0.5)])


def attention() -> Callable[[tf.Tensor], Any]:
    split, attend = keras.layers.Reshape((3, 2)), keras.layers.MultiHeadAttention(2, 2, dropout=0.3)
    rest = [keras.layers.SeparableConv1D(3, 2), keras.layers.GaussianNoise(0.1)]
    return lambda x: keras.Sequential(rest)(attend(split(x), split(x)))


def trace(net: Callable[[tf.Tensor], Any], seed: int = 0) -> TowerFunction:
    """As a trainer does it."""
    tower = tower_of(lambda x: net(x), spec(None, 6), seed=seed)
    tower.trace(is_training=True)
    return tower


def values(net: Callable[[tf.Tensor], Any], seed: int) -> dict[str, bytes]:
    return {name: v.tobytes() for name, v in variables(trace(net, seed)).items()}


@pytest.mark.parametrize("make", [unbuilt, built, recurrent, attention])
def test_what_is_drawn_is_a_function_of_the_seed(make: Callable[[], Any]) -> None:
    first, again, other = values(make(), 1), values(make(), 1), values(make(), 2)
    assert first == again
    constant = ("bias", "beta")
    assert all(name.endswith(constant) for name in first if first[name] == other[name])


def test_built_or_not_the_values_are_the_same_and_differ_from_layer_to_layer() -> None:
    assert values(built(), 1) == values(unbuilt(), 1)
    twins = keras.Sequential([Dense(6), Dense(6)])
    drawn = [v for name, v in values(twins, 1).items() if "kernel" in name]
    assert len(drawn) == len({*drawn}) == 2
    one = keras.initializers.HeNormal()
    shared = keras.Sequential([Dense(6, kernel_initializer=one), Dense(6, kernel_initializer=one)])
    shared.build((None, 6))
    assert len({v for name, v in values(shared, 1).items() if "kernel" in name}) == 1


@pytest.mark.parametrize("built_before", [False, True])
def test_the_roles_of_one_layer_draw_differently(built_before: bool) -> None:
    """Square matrices with equal initializers, so that only their seeds differ."""
    recurrent = keras.layers.SimpleRNN(2, recurrent_initializer="glorot_uniform")
    gates = keras.layers.LSTM(2, recurrent_initializer="glorot_uniform", unit_forget_bias=False)
    attend = keras.layers.MultiHeadAttention(1, 2)
    split = keras.layers.Reshape((3, 2))
    for layer in (recurrent, gates, lambda x: attend(x, x)):
        net = (
            keras.Sequential([keras.Input((6,)), split, layer])
            if layer in (recurrent, gates)
            else (lambda x, layer=layer: layer(split(x)))
        )
        if built_before and layer not in (recurrent, gates):
            attend(np.zeros((1, 3, 2), np.float32), np.zeros((1, 3, 2), np.float32))
        drawn = [v for name, v in values(net, 1).items() if "kernel" in name]
        assert len(drawn) > 1
        assert len({*drawn}) == len(drawn), layer


def test_weights_that_were_loaded_or_trained_stay() -> None:
    net, source = built(), built()
    net.set_weights(source.get_weights())
    head = Dense(2)
    tower = trace(lambda x: head(net(x)))
    for ours, theirs in zip(net.get_weights(), source.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for variable in tower.store.named_variables().values():
        if variable.dtype.is_floating:
            variable.assign_add(tf.ones_like(variable))
    before = variables(tower)
    again = trace(lambda x: head(net(x)), seed=3)
    assert not [n for n, v in variables(again).items() if v.tobytes() != before[n].tobytes()]


def test_a_second_tower_over_the_same_layers_changes_nothing() -> None:
    net = built()
    first = values(net, 1)
    assert values(net, 2) == first


def test_seeds_of_the_user_stay() -> None:
    def make() -> keras.Model:
        kernel = keras.initializers.GlorotUniform(seed=3)
        layers = [Dense(4, kernel_initializer=kernel), keras.layers.Dropout(0.5, seed=4)]
        return keras.Sequential([keras.Input((6,)), *layers])

    assert values(make(), 1) == values(make(), 2)


def test_what_was_made_equal_stays_equal(caplog: pytest.LogCaptureFixture) -> None:
    online, target = built(), built()
    target.set_weights(online.get_weights())
    with caplog.at_level(logging.INFO):
        trace(lambda x: online(x) - target(x))
    for ours, theirs in zip(online.get_weights(), target.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert "online/dense, online/dense_1, target/dense, target/dense_1 as they were" in caplog.text


def test_a_seed_generator_on_the_model() -> None:
    def noise(seed: int) -> bytes:
        generator = keras.random.SeedGenerator()
        tower = trace(lambda x: x + keras.random.normal([6], seed=generator), seed)
        return tower(numbers(1, 6)).outputs["y"].numpy().tobytes()

    assert noise(1) == noise(1) != noise(2)
