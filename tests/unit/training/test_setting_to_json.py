"""Settings of any class: equal objects have equal descriptions, other objects have others."""

from __future__ import annotations

import argparse
import collections
import random
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from towerpack.callbacks import KerasMetric, ScalarStats
from towerpack.dataflow import DataFromList, MapData, imgaug
from towerpack.dataflow.content import functions_of, stages_of
from towerpack.dataflow.object_parts import noting_uncompared
from towerpack.training.state.setting_to_json import described


class Slots:
    __slots__ = ("_table", "factor")

    def __init__(self, factor: float) -> None:
        self.factor = factor
        self._table = {"a": [factor]}

    def __call__(self, value: float) -> float:
        return value * self.factor


class SlotsAndMore(Slots):
    __slots__ = ("also",)

    def __init__(self, also: int) -> None:
        super().__init__(0.5)
        self.also = also


@dataclass(slots=True)
class Data:
    inner: Slots


class Table:
    """Private settings, and a cache."""

    def __init__(self, number: int) -> None:
        self._rates = {0: 0.1, 5: 0.1 / number}
        self._cache: dict[int, float] = {}
        self._random = np.random.default_rng(7)
        self._last: Any = None

    def __call__(self, epoch: int) -> float:
        self._last = [epoch]
        self._cache[epoch] = self._rates[0]
        return self._cache[epoch]


class Pickled:
    """Says itself what belongs to it."""

    def __init__(self, number: int) -> None:
        self._number, self.opened = [number], object()

    def __getstate__(self) -> Any:
        return self._number


class Scale(keras.layers.Layer):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor
        self.inner = keras.layers.Dense(3)

    def call(self, x: Any) -> Any:
        return x * self.factor


class Distance(keras.losses.Loss):
    def __init__(self, power: float) -> None:
        super().__init__()
        self._powers = [power]

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return keras.ops.abs(y_true - y_pred) ** self._powers[0]


def closure(value: Any) -> Callable[[], Any]:
    return lambda: value


def mean(number: float) -> Any:
    return keras.metrics.MeanMetricWrapper(lambda a, b: a * number - b)


KINDS: dict[str, Callable[[int], Any]] = {
    "Generator": np.random.default_rng,
    "PCG64": np.random.PCG64,
    "method of a generator": lambda n: np.random.default_rng(n).normal,
    "slots": Slots,
    "slots in the object": lambda n: SlotsAndMore(n),
    "slots of a data class": lambda n: Data(Slots(n)),
    "private attributes": Table,
    "__getstate__": Pickled,
    "namespace": lambda n: types.SimpleNamespace(a=n),
    "arguments": lambda n: argparse.Namespace(a=[n]),
    "queue": lambda n: collections.deque([Slots(n)]),
    "set": lambda n: {Slots, n},
    "layer": keras.layers.Dense,
    "layers": lambda n: keras.Sequential([keras.layers.Dense(2), keras.layers.Dense(n)]),
    "own layer": Scale,
    "loss": lambda n: keras.losses.Huber(float(n)),
    "own loss": Distance,
    "metric": lambda n: keras.metrics.TopKCategoricalAccuracy(n),
    "metric of a function": mean,
    "schedule": lambda n: keras.optimizers.schedules.CosineDecay(0.1, n),
    "initializer": keras.initializers.Constant,
    "inferencer": lambda n: KerasMetric(mean(n)),
    "augmentor": lambda n: imgaug.RandomCrop(n),
    "ours": lambda n: ScalarStats(f"cost{n}"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_objects_of_every_class_are_compared(kind: str) -> None:
    make = KINDS[kind]
    with noting_uncompared() as classes:
        for around in (lambda value: value, closure, lambda value: [{"a": (value,)}]):
            assert described(around(make(3))) == described(around(make(3)))
            assert described(around(make(3))) != described(around(make(4)))
    assert not classes


def test_what_an_object_has_cached_is_not_its_setting() -> None:
    used = Table(1)
    used(3)
    assert described(used) == described(Table(1))


def test_a_generator_that_the_system_seeds_is_another_at_each_start_and_not_compared() -> None:
    assert described(np.random.default_rng()) == described(np.random.default_rng())
    assert described(random.SystemRandom()) == described(random.SystemRandom())
    assert described(closure(random.randint)) == described(closure(random.randint))


def test_workers_may_draw_their_data_with_generators_of_their_own() -> None:
    def flow(seed: int) -> Any:
        generator = np.random.default_rng(seed)
        return MapData(DataFromList([[1]]), lambda point: [point[0] + generator.random()])

    assert functions_of(flow(1)) != functions_of(flow(2))
    assert stages_of(flow(1)) == stages_of(flow(2))


def test_what_cannot_be_compared_is_noted() -> None:
    with noting_uncompared() as classes:
        described([closure(threading.Lock()), closure(i for i in range(3)), tf.Module()])
        # Whether these were seeded cannot be seen; without a seed they differ at each start.
        assert described(random.Random()) == described(random.Random())
        assert described(np.random.RandomState()) == described(np.random.RandomState())
        drawn = tf.random.Generator.from_non_deterministic_state
        assert described(drawn()) == described(drawn())
    assert list(classes) == ["generator", "Module", "Random", "RandomState", "Generator"]
