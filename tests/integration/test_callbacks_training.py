"""Callbacks on a real trainer."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from scaling import sample
from towerpack.callbacks import (
    Callback,
    ClassificationError,
    EarlyStopping,
    HumanHyperParamSetter,
    HyperParamSetterWithFunc,
    InferenceRunner,
    MinSaver,
    ModelSaver,
    PeriodicTrigger,
    ScalarStats,
    ScheduledHyperParamSetter,
    StatMonitorParamSetter,
)
from towerpack.checkpoint import load_checkpoint
from towerpack.dataflow import BatchData, DataFromArrays, ShuffleData
from towerpack.model import ModelDesc
from towerpack.nn import FullyConnected, expose
from towerpack.training import SimpleTrainer, TrainConfig

RNG = np.random.default_rng(0)
X = RNG.normal(size=(70, 3)).astype(np.float32)
Y = (X @ [1.0, -2.0, 0.5] + 0.3 * RNG.normal(size=70) > 0).astype(np.int64)


class Model(ModelDesc):
    def inputs(self) -> list[tf.TensorSpec]:
        return [tf.TensorSpec([None, 3], tf.float32, "x"), tf.TensorSpec([None], tf.int64, "y")]

    def build_graph(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        logits = FullyConnected("fc", x, 2)
        expose("incorrect", tf.not_equal(tf.argmax(logits, 1), y))
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))

    def optimizer(self) -> Any:
        return keras.optimizers.SGD(0.5)


def train_data() -> Any:
    return BatchData(ShuffleData(DataFromArrays(X[:40], Y[:40])), 8)


def val_data() -> Any:
    # Ragged, and shuffled, which must not matter.
    return BatchData(ShuffleData(DataFromArrays(X[40:], Y[40:])), 7, remainder=True)


def train(
    run_dir: Path, callbacks: Iterable[Callback], *, epochs: int = 4, **kwargs: Any
) -> SimpleTrainer:
    trainer = SimpleTrainer(
        TrainConfig(
            dataflow=kwargs.pop("dataflow", None) or train_data(),
            model=Model(),
            callbacks=list(callbacks),
            max_epoch=epochs,
            seed=3,
            run_dir=run_dir,
            **kwargs,
        )
    )
    trainer.train()
    return trainer


def all_sorts() -> list[Callback]:
    return [
        InferenceRunner(val_data(), [ScalarStats("cost"), ClassificationError()]),
        PeriodicTrigger(
            InferenceRunner(val_data(), ClassificationError(), prefix="often"), every_k_steps=3
        ),
        ScheduledHyperParamSetter("learning_rate", [(0, 0.4), (3, 0.1)], "linear"),
        HyperParamSetterWithFunc("learning_rate", lambda epoch, lr: lr * 0.875),
        StatMonitorParamSetter("learning_rate", "val/cost", lambda lr: lr * 0.5, 0.05, 2),
        MinSaver("val/error"),
        ModelSaver(),
    ]


def expected(trainer: SimpleTrainer) -> tuple[float, float]:
    """Cost and error over the validation data, in NumPy."""
    weights = trainer.get_weights()
    logits = X[40:] @ weights["fc/kernel"] + weights["fc/bias"]
    logs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    cost = -np.mean(logs[np.arange(30), Y[40:]])
    return float(cost), float(np.mean(logits.argmax(1) != Y[40:]))


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> SimpleTrainer:
    return train(tmp_path_factory.mktemp("whole"), all_sorts())


def test_evaluation_is_exact(trainer: SimpleTrainer) -> None:
    cost, error = expected(trainer)
    assert trainer.monitors.latest("val/cost") == pytest.approx(cost, rel=1e-5)
    assert trainer.monitors.latest("val/error") == pytest.approx(error, abs=1e-9)
    assert [step for step, _ in trainer.monitors.history("val/error")] == [5, 10, 15, 20]
    assert [step for step, _ in trainer.monitors.history("often/error")] == [3, 6, 9, 12, 15, 18]
    checkpoints = {path.name for path in (trainer.run_dir / "checkpoints").iterdir()}
    assert {f"step-{step:08d}" for step in (5, 10, 15, 20)} <= checkpoints
    (best,) = (name for name in checkpoints if name.startswith("best-"))
    errors = trainer.monitors.history("val/error")
    assert int(best.rpartition("-")[2]) == min(errors, key=lambda pair: (pair[1], pair[0]))[0]


WATCHED = ("val/cost", "val/error", "often/error", "learning_rate", "cost")


def test_resumed_is_as_uninterrupted(trainer: SimpleTrainer, tmp_path: Path) -> None:
    for epochs in (1, 3, 4):
        parts = train(tmp_path, all_sorts(), epochs=epochs)
    for name in WATCHED:
        assert parts.monitors.history(name) == trainer.monitors.history(name), name
    for name, value in trainer.get_weights().items():
        np.testing.assert_array_equal(parts.get_weights()[name], value)
    assert parts.callbacks.state() == trainer.callbacks.state()


def test_hyper_parameters_by_hand(tmp_path: Path) -> None:
    class Write(Callback):
        def trigger(self) -> None:
            rates = {"learning_rate": 0.25 / self.trainer.epoch}
            (self.trainer.run_dir / "hyper.yaml").write_text(json.dumps(rates))

    human = HumanHyperParamSetter()
    trainer = train(tmp_path, [Write(), human, ModelSaver()], epochs=3)
    assert [change[:2] for change in human.changes] == [
        [5, "learning_rate"], [10, "learning_rate"], [15, "learning_rate"]
    ]  # fmt: skip
    assert trainer.hyper_param("learning_rate").get() == pytest.approx(0.25 / 3)
    resumed = HumanHyperParamSetter()
    train(tmp_path, [resumed, ModelSaver()], epochs=4)
    assert resumed.changes == human.changes


def test_early_stopping(tmp_path: Path) -> None:
    def callbacks() -> list[Callback]:
        runner = InferenceRunner(val_data(), ScalarStats("cost"))
        return [runner, EarlyStopping("val/cost", patience=2, min_delta=10.0), ModelSaver()]

    trainer = train(tmp_path, callbacks(), epochs=9)
    assert (trainer.epoch, trainer.global_step) == (3, 15)
    # Started again, it has ended already.
    assert train(tmp_path, callbacks(), epochs=9).global_step == 15


def test_saves_by_steps(tmp_path: Path) -> None:
    saver = PeriodicTrigger(ModelSaver(keep=None), every_k_steps=4)
    train(tmp_path, [saver])
    found = sorted(path.name for path in (tmp_path / "checkpoints").glob("step-*"))
    assert found == [f"step-{step:08d}" for step in (4, 8, 12, 16, 20)]


class Killed(ScalarStats):
    """Sends SIGTERM to its own process in the middle of an evaluation."""

    def __init__(self, evaluation: int) -> None:
        super().__init__("cost")
        self._left = evaluation

    def begin(self) -> None:
        super().begin()
        self._left -= 1

    def update(self, outputs: Any, batch_size: int) -> None:
        super().update(outputs, batch_size)
        if self._left == 0:
            self._left = -1
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("when", sample([{"every_k_steps": 3}, {"every_k_epochs": 1}]))
def test_a_run_that_is_ended_inside_an_evaluation_resumes_exactly(
    tmp_path: Path, when: dict[str, int]
) -> None:
    def callbacks(evaluation: int) -> list[Callback]:
        return [
            HyperParamSetterWithFunc("learning_rate", lambda epoch, lr: lr * 0.875),
            PeriodicTrigger(
                InferenceRunner(val_data(), Killed(evaluation), prefix="killed"), **when
            ),
            PeriodicTrigger(MinSaver("killed/cost"), **when),
            StatMonitorParamSetter("learning_rate", "killed/cost", lambda lr: lr * 0.5, 0.05, 2),
        ]

    whole = train(tmp_path / "whole", callbacks(-1))
    with pytest.raises(SystemExit) as ended:
        train(tmp_path / "parts", callbacks(2))
    assert ended.value.code == 143
    parts = train(tmp_path / "parts", callbacks(-1))
    for name in ("killed/cost", "learning_rate", "cost"):
        assert parts.monitors.history(name) == whole.monitors.history(name), name
    for name, value in whole.get_weights().items():
        np.testing.assert_array_equal(parts.get_weights()[name], value)
    assert parts.callbacks.state() == whole.callbacks.state()


class PutScore(Callback):
    def produces(self) -> list[str]:
        return ["score"]

    def trigger_epoch(self) -> None:
        self.trainer.monitors.put_scalar("score", [0.5, 0.1, 0.4][self.trainer.epoch - 1])


def test_killed_before_the_best_was_kept_as_such(tmp_path: Path) -> None:
    """A kill between a checkpoint and its copy: the next run makes up for it."""
    callbacks = PutScore(), ModelSaver(), MinSaver("score")
    train(tmp_path, callbacks, epochs=2)
    (best,) = (tmp_path / "checkpoints").glob("best-*")
    assert best.name.endswith("10")
    shutil.rmtree(best)
    train(tmp_path, (PutScore(), ModelSaver(), MinSaver("score")), epochs=3)
    assert load_checkpoint(tmp_path, tag="best-score").step == 10
