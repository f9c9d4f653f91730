"""Updates by TensorFlow's kernels beside those of the Keras optimizers themselves."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from towerpack import NumericsError, SimpleTrainer, TrainConfig
from towerpack.dataflow import BatchData, DataFromArrays
from towerpack.training.optim import fused
from towerpack.training.optim.optimizer import AccumulateGradients, WeightEMA
from towerpack.training.optim.proxy_and_loss_scale import adapt

SHAPES = {"a/kernel": [4, 3], "b/bias": [3], "c/table": [5, 2]}
SCHEDULE = keras.optimizers.schedules.ExponentialDecay(0.05, 20, 0.5)
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "schedule": {"learning_rate": SCHEDULE},
    "decay": {"weight_decay": 0.1},
    "clipnorm": {"clipnorm": 0.5},
    "clipvalue": {"clipvalue": 0.2},
    "global_clipnorm": {"global_clipnorm": 0.7},
    "averages": {"use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": 7},
    "accumulated": {"gradient_accumulation_steps": 3},
    "scaled": {"loss_scale_factor": 16.0},
    "several": {"learning_rate": SCHEDULE, "weight_decay": 0.1, "clipnorm": 0.5, "use_ema": True},
}
FULL = ("momentum", "adam")  # The other optimizers have two of the options.
FTRL = {
    "l1_regularization_strength": 0.01,
    "l2_regularization_strength": 0.01,
    "l2_shrinkage_regularization_strength": 0.01,
    "beta": 0.5,
}
KERNELS: dict[str, tuple[str, type, dict[str, Any]]] = {
    "sgd": ("GradientDescent", keras.optimizers.SGD, {}),
    "momentum": ("KerasMomentum", keras.optimizers.SGD, {"momentum": 0.9}),
    "nesterov": ("KerasMomentum", keras.optimizers.SGD, {"momentum": 0.9, "nesterov": True}),
    "adam": ("Adam", keras.optimizers.Adam, {"epsilon": 0.01}),
    "adamw": ("Adam", keras.optimizers.AdamW, {"beta_1": 0.8}),
    "adamax": ("AdaMax", keras.optimizers.Adamax, {"epsilon": 0.01}),
    "rmsprop": ("RMSProp", keras.optimizers.RMSprop, {"momentum": 0.8, "epsilon": 0.01}),
    "centered": ("CenteredRMSProp", keras.optimizers.RMSprop, {"momentum": 0.8, "centered": True}),
    "adadelta": ("Adadelta", keras.optimizers.Adadelta, {"epsilon": 0.01}),
    "ftrl": ("FtrlV2", keras.optimizers.Ftrl, FTRL),
    "ftrl, other power": ("FtrlV2", keras.optimizers.Ftrl, {**FTRL, "learning_rate_power": -0.3}),
}


@pytest.fixture(autouse=True)
def no_model_is_tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "TINY", 0)


class Mine(keras.optimizers.SGD):
    """Subclass, whose `update_step` is called."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        variable.assign_sub(2.0 * learning_rate * gradient)


UNFUSED: dict[str, tuple[type, dict[str, Any]]] = {
    "subclass": (Mine, {}),
    "amsgrad": (keras.optimizers.Adam, {"amsgrad": True}),
    "rmsprop": (keras.optimizers.RMSprop, {}),
    "adagrad": (keras.optimizers.Adagrad, {"epsilon": 0.01}),
    "nadam": (keras.optimizers.Nadam, {}),
}


def gradients(step: int, dtype: tf.DType = tf.float32) -> list[tf.Tensor]:
    rng = np.random.default_rng(step)
    scale = 10.0 ** rng.uniform(-3, 1)
    return [tf.constant(rng.normal(size=s) * scale, dtype) for s in SHAPES.values()]


def variables(dtype: tf.DType = tf.float32) -> dict[str, tf.Variable]:
    rng = np.random.default_rng(99)
    return {n: tf.Variable(tf.constant(rng.normal(size=s), dtype)) for n, s in SHAPES.items()}


class Fused:
    """Variables that our adapter updates."""

    def __init__(self, optimizer: Any, dtype: tf.DType = tf.float32) -> None:
        self.optimizer, self.trained = optimizer, variables(dtype)
        adapter = adapt(optimizer)
        adapter.build(self.trained)
        specs = [tf.TensorSpec(v.shape, dtype) for v in self.trained.values()]
        self.step = tf.function(lambda *g: adapter.apply(g), specs, autograph=False)
        self.adapter = adapter

    def ops(self) -> set[str]:
        graph = self.step.get_concrete_function().graph.as_graph_def()
        nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
        return {n.op.removeprefix("ResourceApply") for n in nodes if "ResourceApply" in n.op}

    def state(self) -> list[np.ndarray]:
        every = [*self.trained.values(), *(v.value for v in self.optimizer.variables)]
        return [variable.numpy() for variable in every]


class Unfused(Fused):
    """Variables that the Keras optimizer updates by itself."""

    def __init__(self, optimizer: Any, dtype: tf.DType = tf.float32) -> None:
        self.optimizer, self.trained = optimizer, variables(dtype)
        trained = list(self.trained.values())
        optimizer.build(trained)
        self.step = tf.function(lambda *g: optimizer.apply(g, trained), autograph=False)


def made(cls: type, kwargs: dict[str, Any]) -> Callable[[], Any]:
    return lambda: cls(**{"learning_rate": 0.05, **kwargs})


def assert_equal(ours: Fused, theirs: Fused, where: str) -> None:
    """Within 5e-5 of the largest value: TensorFlow computes 1 - beta_2 in float32."""
    for i, (value, expected) in enumerate(zip(ours.state(), theirs.state(), strict=True)):
        scale = max(float(np.abs(expected).max()), 1e-6)
        np.testing.assert_allclose(value, expected, atol=5e-5 * scale, err_msg=f"{where}, {i}")


@pytest.mark.parametrize("name", KERNELS)
def test_a_hundred_steps_equal_those_of_keras(name: str) -> None:
    kernel, cls, kwargs = KERNELS[name]
    for option in OPTIONS if name in FULL else ("plain", "several"):
        more = OPTIONS[option]
        make = made(cls, {**kwargs, **more})
        ours, theirs, resumed = Fused(make()), Unfused(make()), Fused(make())
        assert kernel in ours.ops(), option
        for step in range(100):
            if step == 50:  # A checkpoint that Keras has made.
                every = (*resumed.trained.values(), *(v.value for v in resumed.optimizer.variables))
                for variable, value in zip(every, theirs.state(), strict=True):
                    variable.assign(value)
            for trained in (ours, theirs, *([resumed] if step >= 50 else [])):
                trained.step(*gradients(step))
        assert_equal(ours, theirs, option)
        assert_equal(resumed, theirs, option)


def test_adam_of_a_tiny_model_needs_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert not Fused(keras.optimizers.Adam(0.1)).ops()
    assert Fused(keras.optimizers.SGD(0.1)).ops()


@pytest.mark.parametrize("name", UNFUSED)
def test_what_has_no_kernel_equals_keras(name: str) -> None:
    ours, theirs = (kind(made(*UNFUSED[name])()) for kind in (Fused, Unfused))
    assert not ours.ops()
    for step in range(20):
        ours.step(*gradients(step))
        theirs.step(*gradients(step))
    assert_equal(ours, theirs, name)


def test_dtypes_and_sparse_gradients() -> None:
    adam = made(keras.optimizers.Adam, {})
    for dtype, expected in ((tf.float64, {"Adam"}), (tf.bfloat16, set())):
        ours, theirs = Fused(adam(), dtype), Unfused(adam(), dtype)
        assert ours.ops() == expected
        for step in range(20):
            ours.step(*gradients(step, dtype))
            theirs.step(*gradients(step, dtype))
        for value, other in zip(ours.state(), theirs.state(), strict=True):
            np.testing.assert_allclose(value.astype(float), other.astype(float), rtol=1e-3)
    sparse, dense = Fused(adam()), Fused(adam())
    rows = tf.IndexedSlices(tf.ones([2, 2]), tf.constant([1, 3]), tf.constant([5, 2]))
    first, second, _ = gradients(0)
    tf.function(lambda: sparse.adapter.apply([first, second, rows]), autograph=False)()
    dense.step(first, second, tf.convert_to_tensor(rows))
    assert_equal(sparse, dense, "sparse")


class Printing(keras.optimizers.SGD):
    """Subclass whose update XLA cannot compile."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        tf.print("", output_stream="file:///dev/null")
        super().update_step(gradient, variable, learning_rate)


@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.optimizers.AdamW(SCHEDULE, weight_decay=0.1, global_clipnorm=0.5),
        lambda: WeightEMA(AccumulateGradients(keras.optimizers.SGD(0.01, 0.9), 2)),
        lambda: keras.optimizers.Adam(0.01, amsgrad=True, use_ema=True),
        lambda: Printing(0.01),
    ],
)
def test_xla_compiles_updates_and_applies_no_nan(make: Callable[[], Any], tmp_path: Path) -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        table = tf.compat.v1.get_variable("table", [3], initializer=tf.ones_initializer())
        return tf.reduce_sum(tf.square(table * x - 2.0))

    rows = np.float32([[1.0, 2.0, 3.0], [0.5, 0.1, 0.0], [np.nan, 1.0, 1.0], [3.0, 2.0, 1.0]])
    model: Any = ([tf.TensorSpec([None, 3], tf.float32, "x")], build, make)
    weights = []
    for xla, data in ((False, rows[:2]), (False, rows), (True, rows)):
        flow = BatchData(DataFromArrays([data]), 1)
        where = tmp_path / str(len(weights))
        trainer = SimpleTrainer(
            TrainConfig(model=model, dataflow=flow, max_epoch=1, run_dir=where, xla=xla)
        )
        with contextlib.nullcontext() if data is not rows else pytest.raises(NumericsError):
            trainer.train()
        weights.append(trainer.get_weights()["table"])
    np.testing.assert_array_equal(weights[0], weights[1])
    np.testing.assert_allclose(weights[0], weights[2], rtol=1e-5)
