"""Steps that fail, weights that become NaN, and checkpoints that are deleted."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from small_training import (
    LINE,
    SPECS,
    Do,
    X,
    config,
    flow,
    train,
)
from towerpack import NumericsError, StepError
from towerpack.callbacks import (
    Callback,
    CheckNumerics,
    InferenceRunner,
    ModelSaver,
    ScalarStats,
)
from towerpack.checkpoint import list_checkpoints
from towerpack.dataflow import BatchData, DataFromArrays, ShuffleData
from towerpack.inputs import (
    FeedInput,
    QueueInput,
)
from towerpack.nn import (
    FullyConnected,
    get_current_tower_context,
)
from towerpack.training import SimpleTrainer

pytestmark = pytest.mark.usefixtures("nothing_to_collect", "no_thread_is_left")


@pytest.mark.parametrize(("source", "at"), [(FeedInput, 0), (QueueInput, 3), (QueueInput, 5)])
def test_a_step_that_tensorflow_fails_is_named_and_its_batch_kept(
    paced: Any, tmp_path: Path, source: Any, at: int
) -> None:
    paced(3)
    labels = np.zeros(48, np.int64)
    labels[8 * at + 2] = 12
    batches = BatchData(ShuffleData(DataFromArrays(X, labels)), 8)
    at = [12 in batch[1] for batch in batches.iterate(seed=5, epoch=0)].index(True)

    def build(x: tf.Tensor, label: tf.Tensor) -> tf.Tensor:
        logits = FullyConnected("fc", x, 10)
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(label, logits))

    model = ([SPECS[0], tf.TensorSpec([None], tf.int64, "label")], build, keras.optimizers.SGD)
    with pytest.raises(StepError, match=rf"Step {at + 1} failed") as caught:
        train(tmp_path, [ModelSaver()], model=model, data=source(batches))
    assert str(caught.value.got).startswith("Received a label value of 12 which is outside")
    assert str(tmp_path) in str(caught.value.fix)
    assert f"build ({__file__}" in str(caught.value)
    wanted = list(batches.iterate(seed=5, epoch=0))[at]
    np.testing.assert_array_equal(kept_batch(tmp_path)["label"], wanted[1])


def test_an_evaluation_that_tensorflow_fails_keeps_its_batch(tmp_path: Path) -> None:
    labels = np.arange(8)

    def build(x: tf.Tensor, label: tf.Tensor) -> tf.Tensor:
        logits = FullyConnected("fc", x, 5)
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(label % 5, logits))

    def evaluated(x: tf.Tensor, label: tf.Tensor) -> tf.Tensor:
        if get_current_tower_context().is_training:
            return build(x, label)
        tf.debugging.assert_less(label, tf.constant(5, tf.int64))
        return build(x, tf.where(label < 5, label, tf.cast(tf.strings.to_number("x"), tf.int64)))

    specs = [SPECS[0], tf.TensorSpec([None], tf.int64, "label")]
    batches = BatchData(DataFromArrays(X[:8], labels), 8)
    runner = InferenceRunner(batches, ScalarStats("cost"))
    with pytest.raises(StepError, match="evaluation at step 1 ") as caught:
        train(tmp_path, [runner], model=(specs, evaluated, keras.optimizers.SGD), dataflow=batches)
    assert "failed-evaluation-00000001.npz" in str(caught.value.fix)
    np.testing.assert_array_equal(kept_batch(tmp_path, "evaluation")["label"], labels)


def kept_batch(run_dir: Path, what: str = "step") -> dict[str, np.ndarray]:
    [path] = run_dir.glob(f"failed-{what}-*.npz")
    with np.load(path) as kept:
        return dict(kept)


def test_weights_that_became_nan_unseen_end_no_run_well(tmp_path: Path) -> None:
    x = X.copy()
    x[3] = np.nan

    def build(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(tf.nn.relu(FullyConnected("fc", x, 1)))

    model = (SPECS, build, lambda: keras.optimizers.SGD(0.1))
    trainer = SimpleTrainer(config(tmp_path, model=model, dataflow=flow(x=x)))
    with pytest.raises(NumericsError, match="NaN"):
        trainer.train()
    assert not trainer.complete


def test_weights_that_became_nan_are_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def poisoned(callback: Callback) -> None:
        callback.trainer.tower.store.named_variables()["fc1/bias"].assign([np.nan])

    poison = Do("trigger", poisoned, 6)
    with pytest.raises(NumericsError, match="NaN"):
        train(tmp_path, [poison, ModelSaver()], extra_callbacks=[CheckNumerics()])
    assert "Traceback" not in caplog.text


def test_checkpoints_that_are_deleted_while_the_run_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def delete(callback: Callback) -> None:
        callback.trainer._saves.store.wait()
        shutil.rmtree(tmp_path / "checkpoints")

    train(tmp_path, [ModelSaver(), Do("before_epoch", delete, at=6)], model=LINE, max_epoch=2)
    assert [row.step for row in list_checkpoints(tmp_path)] == [12]
    assert "deleted during the run" in caplog.text


def test_a_run_that_begins_anew_though_it_got_somewhere_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(tmp_path, [ModelSaver()], model=LINE, monitors=None)
    assert "begins at step 0" not in caplog.text
    shutil.rmtree(tmp_path / "checkpoints")
    train(tmp_path, [ModelSaver()], model=LINE, monitors=None)
    assert "came to step 12" in caplog.text
    assert "begins at step 0" in caplog.text
