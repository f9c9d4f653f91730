"""A training with settings of every kind; each start prints the settings that it reports.

python settings_program.py DIRECTORY EPOCHS [NUMBER]

Another NUMBER changes every setting.
"""

from __future__ import annotations

import enum
import functools
import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from small_training import SPECS, X, Y, train
from towerpack import MapGradient, ProcessGradients, VariableAssignment
from towerpack import callbacks as cb
from towerpack.dataflow import BatchData, DataFromArrays, MapData
from towerpack.nn import Dropout, FullyConnected

NUMBER = int(sys.argv[3]) if len(sys.argv) > 3 else 1
SEEN: list[Any] = []


class Kind(enum.Enum):
    FIRST = 1
    SECOND = 2


@dataclass
class Options:
    kinds: frozenset[str]
    number: int


class Times:
    """A function with a factor."""

    def __init__(self, factor: float) -> None:
        self._factor = factor

    def __call__(self, gradient: tf.Tensor) -> tf.Tensor:
        return gradient * self._factor


class Own(cb.Callback):
    """A callback of the user's."""

    def __init__(self, options: Options, *kinds: Kind, **further: Any) -> None:
        self.options, self.kinds, self.further = options, kinds, further

    def trigger(self) -> None:
        SEEN.append(NUMBER)


def scaled(value: float) -> float:
    return value * NUMBER


class Slots:
    __slots__ = ("_numbers",)

    def __init__(self, number: int) -> None:
        self._numbers = {"a": [number]}


class Scale(keras.layers.Layer):
    def __init__(self, factor: int) -> None:
        super().__init__()
        self.factor, self.inner = factor, keras.layers.Dense(2)

    def call(self, x: Any) -> Any:
        return x * self.factor


def objects(number: int) -> dict[str, Any]:
    """Arguments of a callback."""
    generator, slots = np.random.default_rng(number), Slots(number)
    return {
        "generator": generator,
        "slots": slots,
        "layer": keras.Sequential([keras.layers.Dense(3), keras.layers.Dense(number)]),
        "own": Scale(number),
        "loss": keras.losses.Huber(float(number)),
        "metric": keras.metrics.Precision(0.1 * number),
        "draws": lambda: generator.normal(),
        "reads": lambda: slots,
        "rows": (i for i in range(number)),
    }


def closure(number: int) -> Any:
    count = 0

    def function(gradient: Any) -> Any:
        nonlocal count
        count += 1
        SEEN.append(count)
        return gradient * float({"a", "b", "c"} >= {"a"}) * scaled(1.0) / number

    return function


def build(number: int) -> dict[str, Any]:
    labels = np.arange(40) + number
    outside = tf.constant(np.arange(300) * number)
    keys, values = tf.constant([b"a", b"b"]), tf.constant([1, number], tf.int64)
    words = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), 0)
    weights = tf.Variable([1.0, float(number)], trainable=False, name="weights")

    def tower(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        void = tf.constant(250 + number, tf.int64)
        label = tf.cast(y > 0, tf.int64)
        known = tf.not_equal(tf.gather(labels, label) + tf.gather(outside, label), void)
        word = words.lookup(tf.constant(["a", f"b{number}"]))[0]
        factor = tf.cond(y[0] > 0, lambda: number + 1.0, lambda: 1.0)
        out = FullyConnected("fc", Dropout("drop", x, 0.1), 1)[:, 0]
        rows = tf.cast(known, tf.float32) * tf.gather(weights, label) * factor
        return tf.reduce_mean(tf.square(out - y) * rows) * tf.cast(word, tf.float32)

    optimizer = VariableAssignment(
        ProcessGradients(
            keras.optimizers.SGD(0.01),
            [MapGradient(closure(number)), MapGradient(Times(number)), MapGradient(tf.identity)],
        ),
        functools.partial(tf.clip_by_value, clip_value_min=-9.0, clip_value_max=9.0 * number),
    )
    flow = BatchData(MapData(DataFromArrays(X, Y * number), lambda p: (p[0], p[1] * NUMBER)), 8)
    best = cb.MinSaver if number == 1 else cb.MaxSaver
    callbacks = [
        cb.ModelSaver(keep=3 + number),
        cb.InferenceRunner(flow, [cb.ScalarStats("cost")], "val"),
        best("val/cost"),
        cb.EarlyStopping("val/cost", patience=4 + number),
        cb.StatMonitorParamSetter("learning_rate", "val/cost", lambda v: v / number, 0.0, 50),
        cb.EnableCallbackIf(cb.MaxSaver("cost"), lambda c: c.epoch_num > number),
        cb.RunOp(functools.partial(scaled, number)),
        Own(Options(frozenset(["x", "y", "z"]), number), Kind(number), function=closure(number)),
        Own(Options(frozenset(), 0), **objects(number)),
    ]
    if number == 1:
        callbacks.append(cb.HyperParamSetterWithFunc("learning_rate", lambda e, v: 0.01))
    else:
        callbacks.append(cb.HyperParamSetterWithFunc("learning_rate", lambda e, v: 0.02))
    return {"model": (SPECS, tower, lambda: optimizer), "dataflow": flow, "callbacks": callbacks}


if __name__ == "__main__":
    logging.getLogger("towerpack").addHandler(logging.StreamHandler(sys.stdout))
    train(Path(sys.argv[1]), max_epoch=int(sys.argv[2]), **build(NUMBER))
