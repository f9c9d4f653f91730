"""Arguments by the names that the predecessor had for them."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import towerpack as tp
from towerpack import ConfigError, LayerError, inference
from towerpack._core.old_arguments import _TABLE
from towerpack.callbacks import InferenceRunner, ModelSaver, PeriodicTrigger, ScalarStats
from towerpack.dataflow import BatchData, BatchDataByShape, DataFromList, MapData, images
from towerpack.inputs import QueueInput
from towerpack.nn import (
    AvgPooling,
    BatchNorm,
    BNReLU,
    Conv2D,
    FullyConnected,
    InstanceNorm,
    argscope,
    register_layer,
    under_name_scope,
)
from towerpack.tower import TowerFunction
from towerpack.training import SmartInit
from towerpack.training.optim import gradproc, optimizer

HOMES = [
    *(tp.dataflow, tp.dataflow.images, tp.callbacks, tp.inputs, tp.training, inference),
    *(optimizer, gradproc),
]
ROWS = [line.split(" | ") for line in _TABLE.strip().splitlines()]
CASES = [(name, old, row[2]) for row in ROWS for name in row[0].split() for old in row[1].split()]


@pytest.mark.parametrize(("name", "old", "new"), CASES)
def test_an_old_argument_is_the_new_one_or_is_refused_with_what_to_write(
    name: str, old: str, new: str
) -> None:
    homes = [home for home in HOMES if hasattr(home, name)]
    assert homes, name
    cls: Any = getattr(homes[0], name)
    if new.isidentifier():
        assert new in inspect.signature(cls).parameters
        with pytest.raises(ConfigError, match=f"both '{old}' and its new name '{new}'"):
            cls(**{old: 1, new: 1})
    else:
        with pytest.raises(ConfigError, match=f"no argument '{old}'") as caught:
            cls(**{old: 1})
        assert new in str(caught.value)


def test_old_arguments_do_what_the_new_ones_do() -> None:
    any_: Any = MapData
    assert list(any_(DataFromList([1, 2]), func=lambda x: 2 * x)) == [2, 4]

    class Doubled(MapData):
        def __init__(self, ds: Any) -> None:
            any_super: Any = super().__init__
            any_super(ds, func=lambda x: 2 * x)

    assert list(Doubled(DataFromList([3]))) == [6]
    trigger: Any = PeriodicTrigger
    assert trigger(triggerable=ModelSaver(), every_k_steps=2).callback
    runner: Any = InferenceRunner
    assert ScalarStats(["cost:0"], prefix="a").names() == ["a/cost"]
    assert runner(input=BatchData(DataFromList([1]), 1), infs=ScalarStats("cost"))
    queue: Any = tf.queue.FIFOQueue(9, [tf.float32])
    with pytest.raises(ConfigError, match="queue_size"):
        QueueInput(BatchData(DataFromList([1]), 1), queue)
    batch: Any = BatchData
    with pytest.raises(TypeError, match=r'4: pass .* by name; for use_list=, write stack="list"'):
        batch(DataFromList([1]), 1, True, True)
    with pytest.raises(TypeError, match="nonsense"):
        any_(DataFromList([1]), nonsense=3)


IMAGE = tf.TensorSpec([None, 6, 6, 2], tf.float32, "image")


def traced(build: Any) -> Any:
    tower = TowerFunction(build, [IMAGE])
    return tower, tower.trace(is_training=False)


def test_old_arguments_of_layers() -> None:
    @register_layer(log_shape=True)
    def Twice(x: Any) -> Any:
        return 2 * x

    def build(x: Any) -> Any:
        x = Conv2D("conv", inputs=x, out_channel=4, kernel_shape=3)
        x = BatchNorm("bn", x, axis=3)
        x = BNReLU(x, "bn1")
        x = BNReLU(x, name="bn2")
        x = AvgPooling("pool", inputs=Twice("twice", x), shape=2)
        first = tf.transpose(x, [0, 3, 1, 2])
        BatchNorm("first", first, axis=1)
        flat = BatchNorm("flat", FullyConnected("fc", inputs=x, out_dim=5), axis=1)
        tf.nn.softmax(flat, name="prob")
        return tf.reduce_sum(flat)

    tower, trace = traced(build)
    shapes = {n: tuple(v.shape) for n, v in tower.store.named_variables().items() if "gamma" in n}
    names = ("bn", "bn1", "bn2", "first")
    assert shapes == {**{f"{n}/gamma": (4,) for n in names}, "flat/gamma": (5,)}
    predict, _ = trace.function(["prob:0", "conv/output:0"])
    prob, conv = predict(np.ones([2, 6, 6, 2], np.float32))
    assert prob.shape == (2, 5) and conv.shape == (2, 6, 6, 4)


@pytest.mark.parametrize(
    ("layer", "arguments", "says"),
    [
        (Conv2D, {"filters": 2, "kernel_size": 3}, "regularize_cost('layer/kernel', l2_reg"),
        (FullyConnected, {"units": 2}, "regularize_cost('layer/bias', l2_regularizer(1e-4))"),
        (BatchNorm, {"ema_update": "skip"}, "training=False"),
        (InstanceNorm, {"use_affine": False}, "center=False, scale=False"),
        (BatchNorm, {"axis": 2}, "axis must be 1 or 3"),
        (BatchNorm, {"axis": True}, "axis must be 1"),
    ],
)
def test_arguments_of_layers_that_are_done_otherwise(layer: Any, arguments: Any, says: str) -> None:
    old = "bias" if "bias" in says else "kernel"
    more = {f"{old}_regularizer": tf.nn.l2_loss} if "regularize" in says else {}
    with pytest.raises(LayerError) as caught:
        traced(lambda x: tf.reduce_sum(layer("layer", x, **arguments, **more)))
    assert says in str(caught.value)
    if more:
        with pytest.raises(LayerError, match=r"regularize_cost"), argscope([layer], **more):
            pass


def test_name_scopes_of_decorated_functions() -> None:
    @under_name_scope(name_scope="s")
    def f() -> str:
        return tf.get_current_name_scope()

    @under_name_scope()
    def g() -> str:
        return tf.get_current_name_scope()

    with tf.Graph().as_default():
        assert (f(), g(), g(name_scope="other")) == ("s", "g", "other")


def test_weights_by_the_list_that_tensorflow_writes(tmp_path: Path) -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.get_variable("fc/W", initializer=tf.constant([[3.0]]))
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.train.Saver().save(session, str(tmp_path / "model"), global_step=7)
    kernel = tf.Variable(tf.zeros([1, 1]))
    assert SmartInit(str(tmp_path / "checkpoint")).load({"fc/kernel": kernel}) == {"fc/kernel"}
    assert kernel.numpy() == 3


def test_blurs_and_batches_as_programs_ask_for_them() -> None:
    image = np.random.default_rng(0).random((9, 9, 3)).astype(np.float32)
    np.testing.assert_array_equal(images.GaussianBlur(1).augment(image), image)
    assert images.GaussianBlur(4).size_range == images.GaussianBlur(max_size=4).size_range == (0, 4)
    with pytest.raises(TypeError, match="steps_per_epoch"):
        len(BatchDataByShape(DataFromList([[np.zeros(3)]] * 4), 2, 0))
