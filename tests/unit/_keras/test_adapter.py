"""What Keras does not export and we use: a Keras release that moves it fails here first."""

from __future__ import annotations

import random

import keras
import tensorflow as tf

from towerpack._keras import adapter


def test_the_training_flag_reaches_layers_and_is_put_back() -> None:
    drop = keras.layers.Dropout(0.9)
    x = tf.ones([10, 10])
    with adapter.layers_see_training(True):
        assert (drop(x).numpy() == 0).any()
        with adapter.layers_see_training(False):
            assert drop(x).numpy().all()
        assert (drop(x).numpy() == 0).any()
    assert drop(x).numpy().all()


def test_names_are_counted_anew_and_then_on() -> None:
    keras.layers.Dense(1)
    before = keras.layers.Dense(1).name
    with adapter.fresh_names():
        assert [keras.layers.Dense(1).name for _ in range(2)] == ["dense", "dense_1"]
    after = keras.layers.Dense(1).name
    assert int(after.rpartition("_")[2]) == int(before.rpartition("_")[2]) + 1


def test_seeds_of_initializers_come_from_ours() -> None:
    def drawn(seed: int) -> bytes:
        with adapter.seeded_initializers(seed):
            return keras.initializers.GlorotUniform()((3, 3)).numpy().tobytes()

    state = random.getstate()
    assert drawn(1) == drawn(1) != drawn(2)
    assert random.getstate() == state


def test_layers_being_built_and_their_path() -> None:
    seen = []

    def creator(next_creator, **kwargs):
        seen.append((adapter.variable_path(), [type(v) for v in adapter.layers_being_built()]))
        return next_creator(**kwargs)

    with tf.variable_creator_scope(creator):
        keras.Sequential([keras.layers.Dense(1, name="d")], name="s").build((None, 2))
    assert seen[0] == ("s/d", [keras.Sequential, keras.layers.Dense])
    assert adapter.variable_path() == ""
    assert adapter.layers_being_built() == []


def test_losses_are_forgotten() -> None:
    layer = keras.layers.Dense(1, activity_regularizer="l2")
    layer(tf.ones([1, 1]))
    assert len(layer.losses) == 1
    adapter.forget_losses([layer])
    assert layer.losses == []


def test_automatic_names_are_told_from_given_ones() -> None:
    auto = keras.layers.Dense(2)
    given = [keras.layers.Dense(2, name=name) for name in ("block_1", "dense_x")]
    net = keras.Sequential([auto, *given, keras.layers.Dropout(0.5)])
    net.build((None, 2))
    names = adapter.automatic_names(net)
    assert auto.name in names
    assert not names & {"block_1", "dense_x"}
    assert sum(name.startswith("seed_generator") for name in names) == 2


def test_an_alias_has_our_path_and_shares_memory() -> None:
    variable = tf.Variable([1.0, 2.0])
    alias = adapter.variable_alias(variable, "block/conv/kernel")
    assert alias.path == "block/conv/kernel"
    alias.assign([3.0, 4.0])
    assert variable.numpy().tolist() == [3, 4]
    assert alias.trainable
