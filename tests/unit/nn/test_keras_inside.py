"""Keras layers, Keras models and plain TensorFlow variables in and around towers."""

from __future__ import annotations

import functools
import random
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from towerpack import LayerError
from towerpack.model import ModelDesc
from towerpack.nn import FullyConnected, get_current_tower_context, register_layer, scope
from towerpack.tower import TowerFunction
from towers import MODES, numbers, runner, spec, tower_of, traced, variables

Dense = keras.layers.Dense


def moved(tower: TowerFunction, x: np.ndarray | None = None) -> dict[str, bool]:
    """Which variables one step of gradient descent changes."""
    before = variables(tower)
    trainable = tower.store.trainable()
    with tf.GradientTape() as tape:
        cost = tower(numbers(4, 6) if x is None else x).cost
    gradients = tape.gradient(cost, list(trainable.values()))
    for variable, gradient in zip(trainable.values(), gradients, strict=True):
        variable.assign_sub(gradient)
    after = variables(tower)
    return {name: bool((before[name] != after[name]).any()) for name in before}


# ------------------------------------------------------------------ layers made on the spot


def test_layers_on_the_spot_keep_their_variables_over_calls() -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        with scope("block"):
            x = Dense(5, activation="tanh")(x)
        x = Dense(5)(x)
        return Dense(4)(x)

    tower = tower_of(build)
    names = [
        *("block/dense/kernel", "block/dense/bias"),
        *("dense_1/kernel", "dense_1/bias", "dense_2/kernel", "dense_2/bias"),
    ]
    assert traced(tower) == names
    ids = [id(v) for v in tower.store.named_variables().values()]
    x = numbers(4, 6)
    first, *others = [runner(tower, mode)(x)["y"] for mode in MODES]
    for other in others:
        np.testing.assert_allclose(first, other, rtol=1e-3, atol=1e-6)
    assert [id(v) for v in tower.store.named_variables().values()] == ids
    assert all(moved(tower).values())


def test_names_do_not_depend_on_what_else_the_process_has_built() -> None:
    def make() -> TowerFunction:
        return tower_of(lambda x: Dense(4)(keras.layers.Dropout(0.5)(Dense(4)(x))))

    first = make()
    names = traced(first)
    keras.Sequential([Dense(3), Dense(3), keras.layers.Dropout(0.1)]).build((None, 2))
    again = make()
    assert traced(again) == names
    for name, value in variables(first).items():
        np.testing.assert_array_equal(variables(again)[name], value)


def test_two_layers_of_one_given_name() -> None:
    with pytest.raises(LayerError, match="must have different names, but two are 'd'"):
        traced(tower_of(lambda x: Dense(6, name="d")(Dense(6, name="d")(x))))


def test_a_layer_that_a_later_call_makes_otherwise() -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        return Dense(4 if get_current_tower_context().is_training else 5)(x)

    tower = tower_of(build)
    tower.trace(is_training=True)
    with pytest.raises(LayerError, match="'dense/kernel' must have the same shape"):
        tower.trace(is_training=False)


def test_frozen_layers_on_the_spot_are_not_trained() -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        x = Dense(5, trainable=False)(x)
        later = Dense(5)
        later.trainable = False
        return Dense(3)(later(x))

    tower = tower_of(build)
    tower.trace(is_training=True)
    assert list(tower.store.trainable()) == ["dense_2/kernel", "dense_2/bias"]


# ------------------------------------------------------------------ made outside


def functional() -> keras.Model:
    image = keras.Input([6])
    x = Dense(4, activation="tanh")(image)
    x = Dense(4, name="block_7")(x)
    return keras.Model(image, Dense(2)(x))


class Subclassed(keras.Model):
    """Keras builds what is inside by a trial call."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Dense(4), Dense(2)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return self.second(self.first(x))


KINDS = {
    "subclassed": Subclassed,
    "built": lambda: keras.Sequential([keras.Input([6]), Dense(4), Dense(2)]),
    "lazy": lambda: keras.Sequential([Dense(4), Dense(2)]),
    "functional": functional,
    "layer": lambda: Dense(2),
}
NAMES = {
    "subclassed": ["net/dense/kernel", "net/dense/bias", "net/dense_1/kernel", "net/dense_1/bias"],
    "built": ["net/dense/kernel", "net/dense/bias", "net/dense_1/kernel", "net/dense_1/bias"],
    "lazy": ["net/dense/kernel", "net/dense/bias", "net/dense_1/kernel", "net/dense_1/bias"],
    "functional": [
        *("net/dense/kernel", "net/dense/bias", "net/block_7/kernel", "net/block_7/bias"),
        *("net/dense_1/kernel", "net/dense_1/bias"),
    ],
    "layer": ["net/kernel", "net/bias"],
}


class Holder(ModelDesc):
    def __init__(self, kind: str) -> None:
        self.net = KINDS[kind]()

    def inputs(self) -> list[tf.TensorSpec]:
        return [spec(None, 6)]

    def build_graph(self, x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(self.net(x) ** 2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_on_self(kind: str) -> None:
    model = Holder(kind)
    tower = TowerFunction(model.build_graph, model.inputs())
    assert traced(tower) == NAMES[kind]
    assert all(moved(tower).values())
    tower.trace(is_training=False)
    assert list(tower.store.named_variables()) == NAMES[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_in_a_closure(kind: str) -> None:
    net = KINDS[kind]()
    tower = tower_of(lambda x: net(x))
    assert traced(tower) == NAMES[kind]
    assert all(moved(tower).values())


GLOBAL = keras.Sequential([Dense(3)])
COUNT = tf.Variable(0.0, trainable=False)


def helper(x: tf.Tensor) -> tf.Tensor:
    return GLOBAL(x) + COUNT


@register_layer
def WithGlobals(x: tf.Tensor) -> tf.Tensor:
    return helper(x)


class UsesHelper:
    def helper(self, x: tf.Tensor) -> tf.Tensor:
        return helper(x)

    def build_graph(self, x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(self.helper(x))


def test_a_global_that_a_helper_method_uses() -> None:
    tower = TowerFunction(UsesHelper().build_graph, [spec(None, 6)])
    assert sorted(traced(tower)) == ["COUNT", "GLOBAL/dense/bias", "GLOBAL/dense/kernel"]


def test_a_subclassed_model_made_on_the_spot() -> None:
    tower = tower_of(lambda x: Subclassed()(x))
    names = [n.removeprefix("subclassed/") for n in traced(tower)]
    assert names == [n.removeprefix("net/") for n in NAMES["subclassed"]]
    assert all(moved(tower).values())


@pytest.mark.parametrize("use", [helper, lambda x: helper(x), lambda x: WithGlobals("w", x)])
def test_module_globals_and_helpers(use: Any) -> None:
    assert sorted(traced(tower_of(use))) == ["COUNT", "GLOBAL/dense/bias", "GLOBAL/dense/kernel"]


def test_a_method_that_uses_its_closure_and_its_class() -> None:
    outer = Dense(3)

    class Model:
        shared = Dense(3)

        def __init__(self) -> None:
            self.own = Dense(3)

        def build_graph(self, x: tf.Tensor) -> tf.Tensor:
            return tf.reduce_mean(outer(x) + self.shared(x) + self.own(x))

    names = traced(TowerFunction(Model().build_graph, [spec(None, 6)]))
    assert names == [f"{owner}/{v}" for owner in ("own", "shared", "outer") for v in WEIGHTS]


WEIGHTS = ("kernel", "bias")


class Parts:
    """A plain object that holds layers."""

    def __init__(self) -> None:
        self.gate = Dense(6)
        self.gate.trainable = False
        self.again = self  # a cycle must not matter


def test_lists_dicts_and_objects_on_self() -> None:
    class Model:
        def __init__(self) -> None:
            self.blocks = [[Dense(6), keras.layers.BatchNormalization()], None, Dense(6)]
            self.heads = {"a": Dense(6), "b": [Dense(6)]}
            self.parts = Parts()
            self.scale = keras.Variable(1.0, name="s")
            self.shift = tf.Variable(0.0)
            self.files = ["name"] * 10_000

        def build_graph(self, x: tf.Tensor) -> tf.Tensor:
            (one, norm), _, two = self.blocks
            x = two(norm(one(x)))
            x = self.heads["a"](x) + self.heads["b"][0](x) + self.parts.gate(x)
            return tf.reduce_mean(x * self.scale + self.shift)

    tower = TowerFunction(Model().build_graph, [spec(None, 6)])
    norm = ("gamma", "beta", "moving_mean", "moving_variance")
    assert traced(tower) == [
        *(f"blocks/0/0/{v}" for v in WEIGHTS),
        *(f"blocks/0/1/{v}" for v in norm),
        *(f"blocks/2/{v}" for v in WEIGHTS),
        *(f"heads/a/{v}" for v in WEIGHTS),
        *(f"heads/b/0/{v}" for v in WEIGHTS),
        *(f"parts/gate/{v}" for v in WEIGHTS),
        "scale",
        "shift",
    ]
    frozen = set(tower.store.named_variables()) - set(tower.store.trainable())
    assert frozen == {
        *("blocks/0/1/moving_mean", "blocks/0/1/moving_variance"),
        *("parts/gate/kernel", "parts/gate/bias"),
    }


def test_a_tf_module_on_self() -> None:
    class Linear(tf.Module):
        def __init__(self, size: int) -> None:
            super().__init__()
            self.w = tf.Variable(tf.ones([6, size]), name="w")

    class Net(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = [Linear(3), Linear(3)]

    net = Net()
    tower = tower_of(lambda x: sum(x @ layer.w for layer in net.layers))
    assert sorted(traced(tower)) == ["net/layers/0/w", "net/layers/1/w"]


def test_a_partial_and_a_callable_object() -> None:
    def build(net: Any, x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(net(x))

    class Model:
        def __init__(self) -> None:
            self.net = Dense(3)

        def __call__(self, x: tf.Tensor) -> tf.Tensor:
            return tf.reduce_mean(self.net(x))

    specs = [spec(None, 6)]
    assert traced(TowerFunction(functools.partial(build, Dense(3)), specs))[0] == "arg0/kernel"
    assert traced(TowerFunction(Model(), specs)) == ["net/kernel", "net/bias"]
    model = keras.Sequential([Dense(3), keras.layers.Lambda(tf.reduce_mean)])
    assert traced(TowerFunction(model, specs)) == ["model/dense/kernel", "model/dense/bias"]


def test_what_nobody_refers_to_by_name_is_found_by_use() -> None:
    nets = {f"n{i}": i for i in range(1001)}  # too long to be searched

    class Model:
        def __init__(self) -> None:
            self.nets = {**nets, "last": Dense(3)}

        def build_graph(self, x: tf.Tensor) -> tf.Tensor:
            return tf.reduce_mean(self.nets["last"](x))

    model = Model()
    model.nets["last"].build((None, 6))
    tower = TowerFunction(model.build_graph, [spec(None, 6)])
    trace = tower.trace(is_training=True)
    assert [v.shape.as_list() for v in tower.store.trainable().values()] == [[6, 3], [3]]
    assert trace.used == list(tower.store.named_variables())


def test_names_of_outside_models_do_not_depend_on_the_process() -> None:
    names = traced(tower_of_functional())
    keras.Sequential([Dense(2), Dense(2)])
    assert traced(tower_of_functional()) == names == NAMES["functional"]


def tower_of_functional() -> TowerFunction:
    net = functional()
    return tower_of(lambda x: net(x))


def test_a_model_that_is_frozen_in_part() -> None:
    net = functional()
    net.layers[1].trainable = False
    tower = tower_of(lambda x: net(x))
    tower.trace(is_training=True)
    assert list(tower.store.trainable()) == NAMES["functional"][2:]
    net.trainable = False
    assert not tower.store.trainable()
    assert not any(moved(tower).values())
    deep = {"a": {"b": {"c": [net]}}}
    tower = tower_of(lambda x: deep["a"]["b"]["c"][0](x))
    tower.trace(is_training=True)
    assert not tower.store.trainable()


def test_an_attribute_reassigned_in_build_graph() -> None:
    class Model:
        def build_graph(self, x: tf.Tensor) -> tf.Tensor:
            self.net = keras.Sequential([Dense(3)])
            return tf.reduce_mean(self.net(x))

    tower = TowerFunction(Model().build_graph, [spec(None, 6)])
    names = traced(tower)
    ids = {id(v) for v in tower.store.named_variables().values()}
    assert traced(tower) == names == ["net/dense/kernel", "net/dense/bias"]
    assert {id(v) for v in tower.store.named_variables().values()} == ids


def test_one_keras_layer_called_twice_shares_its_weights() -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        layer = Dense(6)
        return layer(layer(x))

    assert traced(tower_of(build)) == ["dense/kernel", "dense/bias"]


# ------------------------------------------------------------------ plain TensorFlow


def test_plain_variables_of_every_kind() -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        constant = tf.Variable(np.ones(6, np.float32))
        function = tf.Variable(lambda: tf.random.normal([6]))
        symbolic = tf.Variable(tf.random.normal([6]) + 1.0, name="symbolic")
        with scope("s"):
            counter = tf.Variable(2, trainable=False, dtype=tf.int64)
        old = tf.compat.v1.get_variable("old", [6])
        return x * constant * function * symbolic * tf.cast(counter, tf.float32) * old

    tower = tower_of(build)
    names = ["variable", "variable_1", "symbolic", "s/variable", "old"]
    assert traced(tower) == names
    assert list(tower.store.trainable()) == ["variable", "variable_1", "symbolic", "old"]
    first = variables(tower)
    tower.trace(is_training=False)
    x = numbers(3, 6)
    eager, *others = [runner(tower, mode)(x)["y"].numpy() for mode in MODES]
    for result in others:
        np.testing.assert_allclose(eager, result, rtol=1e-3)
    assert list(tower.store.named_variables()) == names
    again = tower_of(build)
    traced(again)
    for name, value in first.items():
        np.testing.assert_array_equal(variables(again)[name], value, err_msg=name)
    other = tower_of(build, seed=1)
    traced(other)
    for name in ("variable_1", "symbolic", "old"):
        assert (variables(other)[name] != first[name]).any(), name


def test_an_initial_value_that_depends_on_the_inputs() -> None:
    with pytest.raises(
        LayerError, match="initial value of variable 'w' must not depend on the tower's"
    ):
        traced(tower_of(lambda x: x * tf.Variable(x[0], name="w", shape=[6])))


def test_a_variable_of_another_shape_in_a_later_call() -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        size = 1 if get_current_tower_context().is_training else 6
        return x * tf.Variable(tf.ones([size]), name="w")

    tower = tower_of(build)
    tower.trace(is_training=True)
    with pytest.raises(LayerError, match="'w' must have the same shape") as caught:
        tower.trace(is_training=False)
    assert "(6,)" in str(caught.value) and "(1,)" in str(caught.value)


def test_tf_random_in_a_tower_is_a_function_of_the_seed() -> None:
    def drawn(seed: int) -> bytes:
        tower = tower_of(lambda x: tf.nn.dropout(x, 0.5), spec(None, 64), seed=seed)
        return (
            runner(tower, "graph", is_training=True)(np.ones([4, 64], "f4"))["y"].numpy().tobytes()
        )

    assert drawn(0) == drawn(0) != drawn(1)


# ------------------------------------------------------------------ training or not


class Nested(keras.layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.inner = keras.Sequential([keras.layers.Dropout(0.5)])

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return self.inner(x)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("make", [lambda: keras.layers.Dropout(0.5), Nested])
def test_keras_layers_see_whether_it_is_training(make: Any, mode: str) -> None:
    net = make()
    x = np.ones([8, 64], np.float32)
    for tower in (tower_of(lambda x: net(x), spec(None, 64)),
                  tower_of(lambda x: make()(x), spec(None, 64))):  # fmt: skip
        tower.trace(is_training=True)
        for is_training in (True, False, True):
            y = runner(tower, mode, is_training=is_training)(x)["y"].numpy()
            assert (y == 0).any() == is_training


def test_what_a_layer_is_told_wins_over_the_tower() -> None:
    tower = tower_of(lambda x: keras.layers.Dropout(0.5)(x, training=False), spec(None, 64))
    assert tower(np.ones([2, 64], "f4"), is_training=True).outputs["y"].numpy().all()


def test_batch_normalization_of_keras_moves_in_training_only() -> None:
    net = keras.layers.BatchNormalization(momentum=0.5)
    tower = tower_of(lambda x: net(x))
    x = numbers(16, 6) + 2
    runner(tower, "graph")(x)
    assert not variables(tower)["net/moving_mean"].any()
    runner(tower, "graph", is_training=True)(x)
    np.testing.assert_allclose(variables(tower)["net/moving_mean"], x.mean(0) / 2, rtol=1e-4)


def test_seed_generators_are_variables_that_move() -> None:
    drop = keras.layers.Dropout(0.5, seed=3)
    tower = tower_of(lambda x: keras.layers.Dropout(0.5)(drop(x)), spec(None, 64))
    names = ["drop/seed_generator/seed_generator_state", "seed_generator/seed_generator_state"]
    assert sorted(traced(tower)) == names
    assert not tower.store.trainable()
    call = runner(tower, "graph", is_training=True)
    before = variables(tower)
    one, two = (call(np.ones([4, 64], "f4"))["y"].numpy() for _ in range(2))
    assert (one != two).any()
    assert all((variables(tower)[name] != before[name]).any() for name in names)


# ------------------------------------------------------------------ regularizers and losses


def test_losses_of_keras_do_not_pile_up_over_calls() -> None:
    net = keras.Sequential([Dense(3, activity_regularizer="l2", kernel_regularizer="l2")])

    def build(x: tf.Tensor) -> tf.Tensor:
        return net(x) + tf.add_n(net.losses)

    tower = tower_of(build)
    for _ in range(3):
        assert tower.trace(is_training=True).unused_regularizers() == []
    assert len(net.losses) == 2
    x = numbers(2, 6)
    costs = [float(tower(x).cost) for _ in range(3)]
    assert costs[0] == costs[1] == costs[2]


@pytest.mark.parametrize("added", [True, False])
def test_a_keras_regularizer_that_nobody_added_is_reported(added: bool) -> None:
    net = keras.Sequential([Dense(3, kernel_regularizer="l2"), keras.layers.BatchNormalization()])

    def build(x: tf.Tensor) -> tf.Tensor:
        y = net(x)
        spot = Dense(3, kernel_regularizer="l1")
        y = spot(y)
        return y + sum(net.losses) + sum(spot.losses) if added else y

    unused = tower_of(build).trace(is_training=True).unused_regularizers()
    wanted = [f"The Keras regularizer of '{n}/kernel'" for n in ("net/dense", "dense")]
    assert unused == ([] if added else wanted)


# ------------------------------------------------------------------ nothing left behind


@pytest.mark.parametrize("fails", [True, False])
def test_a_tower_leaves_keras_and_python_as_they_were(fails: bool) -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        x = FullyConnected("fc", Dense(3)(keras.layers.Dropout(0.5)(x)), 3)
        if fails:
            raise ZeroDivisionError
        return x

    def counted() -> int:
        name = Dense(1).name
        return int(name.rpartition("_")[2]) if "_" in name else 0

    random.seed(1)
    wanted = random.random()
    before = counted()
    tower = tower_of(build)
    random.seed(1)
    for trace in (tower.trace, lambda is_training: tower(numbers(2, 6), is_training=is_training)):
        try:
            trace(is_training=True)
        except ZeroDivisionError:
            assert fails
    assert random.random() == wanted
    assert counted() == before + 1
    # Outside of the tower, Keras is in inference again.
    assert keras.layers.Dropout(0.9)(tf.ones([4, 4])).numpy().all()
