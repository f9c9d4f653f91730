"""What NumPy programs give where Python's integers, float32 and int32 are expected."""

from __future__ import annotations

import json
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from small_training import X, Y, assert_same, train
from towerpack.callbacks import EarlyStopping, ModelSaver, PeriodicTrigger
from towerpack.dataflow import BatchData, DataFromArrays, DataFromList
from towerpack.nn import FullyConnected
from towerpack.training import SimpleTrainer


def given(run_dir: Path, x: np.ndarray = X, y: np.ndarray = Y, *, epochs: int = 3) -> SimpleTrainer:
    k = np.int32(5)
    return train(
        run_dir,
        [PeriodicTrigger(ModelSaver(keep=np.int64(2)), k, k), EarlyStopping("cost", np.int64(9))],
        dataflow=BatchData(DataFromArrays(x, y), np.int64(8)),
        max_epoch=np.int64(epochs),
        steps_per_epoch=np.int64(10),
        seed=np.int64(3),
    )


def test_numpy_integers_and_doubles_are_taken_as_they_are_meant(tmp_path: Path) -> None:
    whole = given(tmp_path / "whole", X.astype(np.float64), Y.astype(np.float64))
    given(tmp_path / "parts", epochs=1)  # of float32
    assert_same(whole.get_weights(), given(tmp_path / "parts").get_weights())
    assert len(list((tmp_path / "whole" / "checkpoints").glob("step-*"))) == 2
    assert json.loads((tmp_path / "whole" / "run.json").read_text())["seed"] == 3


def test_labels_of_numpy_and_lists_for_a_model_of_int32(tmp_path: Path) -> None:
    def build(x: tf.Tensor, label: tf.Tensor) -> tf.Tensor:
        logits = FullyConnected("fc", x, 2)
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(label, logits))

    specs = [tf.TensorSpec([None, 3], tf.float32, "x"), tf.TensorSpec([None], tf.int32, "label")]
    labels = (Y > 0).astype(np.int64)
    lists = [(X[i : i + 8].tolist(), labels[i : i + 8].tolist()) for i in range(0, 48, 8)]
    arrays, from_lists = (
        train(
            tmp_path / type(flow).__name__,
            model=(lambda: specs, build, lambda: keras.optimizers.SGD(0.1)),
            dataflow=flow,
        ).get_weights()
        for flow in (BatchData(DataFromArrays(X, labels), 8), DataFromList(lists, shuffle=False))
    )
    assert_same(arrays, from_lists)
