"""A run directory that an earlier version wrote is continued to the same bits.

`stored_run` was written by Towerpack as of November 2026, before `training` was laid out in rooms:
`trainer(path).train()`, without its log and later checkpoints; `expected.npz` is its last one. The
gradients are small integers and all factors powers of two, so that no processor has to round.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from towerpack.callbacks import ModelSaver, PeriodicTrigger, ScheduledHyperParamSetter
from towerpack.callbacks.monitors import ConsoleMonitor, read_stats
from towerpack.checkpoint import load_checkpoint
from towerpack.dataflow import BatchData, DataFromArrays, ShuffleData
from towerpack.model import ModelDesc
from towerpack.nn import Dropout, FullyConnected, summary
from towerpack.training import SimpleTrainer, TrainConfig, WeightEMA
from towerpack.training.state.settings import changes

STORED = Path(__file__).parent / "stored_run"
X = (np.arange(24, dtype=np.float32) % 5 - 2).reshape(12, 2)
Y = X @ np.array([1.0, -2.0], np.float32)


class Model(ModelDesc):
    def inputs(self) -> list[tf.TensorSpec]:
        return [tf.TensorSpec([2, 2], tf.float32, "x"), tf.TensorSpec([2], tf.float32, "y")]

    def build_graph(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        x = Dropout("drop", x, 0.5)
        out = FullyConnected("fc", x, 1, kernel_initializer="ones")
        cost = tf.reduce_mean(tf.squeeze(out, -1) * y)
        summary.moving_average("mean", cost, decay=0.5)
        return cost

    def optimizer(self) -> WeightEMA:
        return WeightEMA(keras.optimizers.SGD(0.25, momentum=0.5), 0.5)


def trainer(run_dir: Path) -> SimpleTrainer:
    config = TrainConfig(
        dataflow=BatchData(ShuffleData(DataFromArrays(X, Y)), 2),
        model=Model(),
        callbacks=[
            PeriodicTrigger(ModelSaver(), every_k_steps=5),
            ScheduledHyperParamSetter("learning_rate", [(1, 0.125)]),
        ],
        monitors=[ConsoleMonitor()],
        max_epoch=2,
        seed=3,
        run_dir=run_dir,
    )
    return SimpleTrainer(config)


def test_a_stored_run_is_continued_to_the_same_bits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(STORED, run_dir)
    checkpoint = load_checkpoint(run_dir)
    assert checkpoint.step == 5
    caplog.set_level(logging.INFO, "towerpack")
    trainer(run_dir).train()
    assert "Resumed at step 5, epoch 1" in caplog.text
    ended = load_checkpoint(run_dir)
    assert ended.step == 12
    with np.load(STORED / "expected.npz") as expected:
        for group, tensors in ended.tensors.items():
            for name, value in tensors.items():
                assert expected[f"{group}/{name}"].tobytes() == value.tobytes(), name
        assert len(expected) == sum(map(len, ended.tensors.values()))
    assert [record.step for record in read_stats(run_dir / "stats.jsonl")] == [6, 12]
    # What the tower computes is told by TensorFlow, which may change its operations.
    kept, now = (
        {n: v for n, v in c.state["settings"].items() if n[:6] != "model."}
        for c in (checkpoint, ended)
    )
    assert changes(kept, now) == []
