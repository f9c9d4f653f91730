"""Callbacks that look inside of a real training, all in one run."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from small_training import Model, X, Y, flow, train
from towerpack import NumericsError
from towerpack.callbacks import (
    CheckNumerics,
    ConfusionMatrix,
    DumpTensors,
    GPUMemoryTracker,
    GraphProfiler,
    HostMemoryTracker,
    InferenceRunner,
    KerasMetric,
    LearningRateFinder,
    ModelSaver,
    NaNWatch,
    Perplexity,
    SimpleMovingAverage,
    StopAfter,
    TensorPrinter,
    TopKError,
    cosine_schedule,
)
from towerpack.checkpoint import list_checkpoints
from towerpack.nn import expose


class Signs(Model):
    """The regression, with the signs as two classes."""

    def build_graph(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        cost = super().build_graph(x, y)
        expose("logits", tf.stack([-y, y + 0.5], axis=1))
        expose("prediction", tf.cast(y > -0.25, tf.int64))
        expose("label", tf.cast(y > 0, tf.int64))
        return cost


def test_all_of_them_in_one_run(tmp_path: Path) -> None:
    metrics = [
        ConfusionMatrix(["below", "above"]),
        TopKError(1),
        Perplexity(),
        KerasMetric(keras.metrics.Precision(), ["label", "prediction"]),
    ]
    callbacks = [
        DumpTensors(["cost", "out"], every_k_steps=5),
        TensorPrinter("cost", every_k_steps=6),
        SimpleMovingAverage("cost", 4),
        InferenceRunner(flow(7, remainder=True), metrics),
        HostMemoryTracker(),
        GPUMemoryTracker(),
        GraphProfiler(first=8, steps=2),
        cosine_schedule(0.05, 24, warmup=4),
        NaNWatch(),
        StopAfter(steps=20),
    ]
    trainer = train(tmp_path, callbacks, model=Signs(), max_epoch=4)
    assert trainer.global_step == 20
    latest = {name: trainer.monitors.latest(name) for name in trainer.monitors.names()}
    wrong = float(np.mean((Y > -0.25) != (Y > 0)))
    assert wrong > 0
    assert latest["val/accuracy"] == pytest.approx(1 - wrong)
    assert latest["val/top1_error"] == pytest.approx(wrong)
    assert latest["val/precision"] == pytest.approx((Y > 0).sum() / (Y > -0.25).sum())
    assert latest["memory/process"] > 0 and latest["cost/SMA"] > 0 and latest["val/perplexity"] > 1
    assert (tmp_path / "val-confusion.png").exists()
    assert len(list((tmp_path / "dump").iterdir())) == 4
    assert list((tmp_path / "profile").rglob("*.xplane.pb"))


def test_the_finder_on_a_real_model(tmp_path: Path) -> None:
    finder = LearningRateFinder(1e-4, 10.0, 60)
    model = Model(lambda: keras.optimizers.SGD(0.1), rate=0.0)
    trainer = train(tmp_path, [finder], model=model, max_epoch=20)
    assert finder.suggestion is not None and 0.001 < finder.suggestion < 1
    assert trainer.global_step == len(finder.costs) <= 60
    assert not (tmp_path / "checkpoints").exists() or not list_checkpoints(tmp_path)


class Broken(Model):
    """A variable that leaves the numbers without the cost's doing."""

    def build_graph(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        cost = super().build_graph(x, y)
        count = tf.compat.v1.get_variable(
            "count", [], trainable=False, initializer=tf.ones_initializer()
        )
        count.assign(tf.math.log(-count))
        return cost


def test_a_broken_variable_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(NumericsError, match="count: 1 of 1"):
        train(
            tmp_path, [NaNWatch(), ModelSaver()], model=Broken(), extra_callbacks=[CheckNumerics()]
        )
    assert X.shape[0] == 48 and not any(row.valid for row in list_checkpoints(tmp_path))
