"""The model as a record: a class, three plain functions, or anything that looks like it."""

from __future__ import annotations

from typing import Any

import keras
import pytest
import tensorflow as tf

from towerpack import ConfigError
from towerpack.model import ModelDesc, PlainModel, as_model
from towerpack.tower import TowerFunction
from towers import numbers, spec, traced

SPECS = [spec(None, 6)]


def build(x: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(keras.layers.Dense(2)(x))


def adam() -> keras.optimizers.Optimizer:
    return keras.optimizers.Adam(0.5)


class Model(ModelDesc):
    def inputs(self) -> list[tf.TensorSpec]:
        return SPECS

    def build_graph(self, x: tf.Tensor) -> tf.Tensor:
        return build(x)

    def optimizer(self) -> Any:
        return adam()


class Alike:
    """No subclass, but it has the methods."""

    inputs = Model.inputs
    build_graph = Model.build_graph
    optimizer = Model.optimizer


FORMS = {
    "class": Model(),
    "tuple": (SPECS, build, adam),
    "functions": (lambda: SPECS, build, adam),
    "optimizer itself": (SPECS, build, adam()),
    "alike": Alike(),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str) -> None:
    model = as_model(FORMS[form])
    assert model.inputs() == SPECS
    assert float(model.optimizer().learning_rate) == 0.5
    tower = TowerFunction(model.build_graph, model.inputs())
    assert traced(tower) == ["dense/kernel", "dense/bias"]
    assert tower(numbers(2, 6)).cost.shape == []


def test_a_class_as_the_function_that_gives_an_optimizer() -> None:
    model = as_model((SPECS, build, keras.optimizers.SGD))
    assert isinstance(model.optimizer(), keras.optimizers.SGD)


def test_a_model_desc_is_kept_and_two_functions_do() -> None:
    model = Model()
    assert as_model(model) is model
    with pytest.raises(NotImplementedError, match=r"PlainModel must define optimizer\(\)"):
        as_model((SPECS, build)).optimizer()


def test_variables_in_the_closure_of_a_plain_function_are_found() -> None:
    net = keras.Sequential([keras.layers.Dense(2)])
    model = as_model((SPECS, lambda x: tf.reduce_mean(net(x))))
    tower = TowerFunction(model.build_graph, model.inputs())
    assert traced(tower) == ["net/dense/kernel", "net/dense/bias"]
    assert isinstance(model, PlainModel)


@pytest.mark.parametrize("method", ["inputs", "build_graph", "optimizer"])
def test_what_is_not_defined_is_named(method: str) -> None:
    with pytest.raises(NotImplementedError, match=rf"ModelDesc must define {method}\(\)"):
        getattr(ModelDesc(), method)()


@pytest.mark.parametrize("thing", [3, "model", (SPECS,), (SPECS, build, adam, 4), [SPECS, build]])
def test_what_is_no_model(thing: Any) -> None:
    with pytest.raises(ConfigError, match="must be a ModelDesc"):
        as_model(thing)
