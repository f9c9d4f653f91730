"""A program that is changed between two starts of a run is told so, in one table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from small_training import SPECS, Model, X, Y, config, train
from towerpack.callbacks import ModelSaver, ScheduledHyperParamSetter
from towerpack.dataflow import BatchData, DataFromArrays
from towerpack.nn import FullyConnected, l2_regularizer, regularize_cost
from towerpack.training import SimpleTrainer


def changed(text: str) -> dict[str, list[str]]:
    """Old, new and which is in effect, by the names of what a log says to have changed."""
    rows = [line.split() for line in text.partition("in effect\n")[2].splitlines()]
    return {row[0]: row[1:4] for row in rows if len(row) > 3 and row[3] == "new"}


def model(decay: float = 1e-4, activation: Any = tf.nn.relu) -> Any:
    def build(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        out = FullyConnected("out", activation(FullyConnected("hidden", x, 4)), 1)
        term = regularize_cost(".*/kernel", l2_regularizer(decay))
        return tf.reduce_mean(tf.square(out[:, 0] - y)) + term

    return SPECS, build, lambda: keras.optimizers.Adam(0.05)


def adam(**kwargs: Any) -> dict[str, Any]:
    return {"optimizer": keras.optimizers.Adam(**{"learning_rate": 0.05, **kwargs})}


def data(x: np.ndarray, batch: int = 8) -> dict[str, Any]:
    return {"dataflow": BatchData(DataFromArrays(x, Y), batch)}


DROPPED, DECAY = "drop/stateless_dropout/GreaterEqual/y", "regularize_cost/mul/x"
decay = keras.optimizers.schedules.ExponentialDecay
CASES = [
    ({}, {"steps_per_epoch": 5}, {"steps_per_epoch": ["6", "5"]}),
    ({}, {"precision": "bfloat16"}, {"precision": ["float32", "bfloat16"]}),
    ({}, {"seed": 6}, {"seed": ["5", "6"]}),
    (adam(), adam(beta_1=0.5), {"optimizer.beta_1": ["0.9", "0.5"]}),
    (adam(), {"optimizer": keras.optimizers.AdamW(0.05)}, {"optimizer": ["Adam", "AdamW"]}),
    (
        {"optimizer": keras.optimizers.SGD(decay(0.1, 10, 0.5))},
        {"optimizer": keras.optimizers.SGD(decay(0.1, 10, 0.2))},
        {"optimizer.learning_rate.config.decay_rate": ["0.5", "0.2"]},
    ),
    ({}, {"model": Model(rate=0.5)}, {f"model.{DROPPED}": ["0.25", "0.5"]}),
    ({"model": model()}, {"model": model(1e-3)}, {f"model.{DECAY}": ["0.0001", "0.001"]}),
    ({"model": model()}, {"model": model(activation=tf.tanh)}, {"model.Relu": ["operations", "1"]}),
    (data(X), data(X[::-1].copy()), {"data.content": None}),
    (data(X), data(X, 4), {"data": None}),
]  # fmt: skip


@pytest.mark.parametrize(("first", "then", "rows"), CASES)
def test_what_was_changed_is_told_before_the_first_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, first: Any, then: Any, rows: Any
) -> None:
    train(tmp_path, [ModelSaver()], **first)
    assert changed(caplog.text) == {}
    trainer = SimpleTrainer(config(tmp_path, [ModelSaver()], **then))
    trainer.train()
    assert trainer.was_complete or "steps_per_epoch" in then or "dataflow" in then
    told = caplog.text.partition("in effect\n")[2]
    for name, values in rows.items():
        [line] = [line.split() for line in told.splitlines() if line.split()[:1] == [name]]
        assert values is None or line[1:3] == values


def rate_of(trainer: SimpleTrainer) -> float:
    return trainer.monitors.latest("learning_rate")


def test_a_rate_that_the_program_gives_anew_is_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def run(rate: float, epochs: int, *callbacks: Any) -> SimpleTrainer:
        return train(
            tmp_path, [ModelSaver(), *callbacks], max_epoch=epochs, **adam(learning_rate=rate)
        )

    def by_hand(trainer: SimpleTrainer) -> None:
        trainer.hyper_param("learning_rate").set(0.03)

    class ByHand(ModelSaver):
        def trigger(self) -> None:
            by_hand(self.trainer)

    run(0.05, 1, ByHand())
    assert rate_of(run(0.05, 2)) == pytest.approx(0.03)  # what was set by hand since
    assert changed(caplog.text) == {}
    assert rate_of(run(0.01, 3)) == pytest.approx(0.01)
    assert changed(caplog.text) == {"learning_rate": ["0.05", "0.01", "new"]}
    # A schedule of the program's stands above the rate that its optimizer was made with.
    schedule = [(1, 0.5), (9, 0.25)]
    assert rate_of(run(0.02, 4, ScheduledHyperParamSetter("learning_rate", schedule))) == 0.5
    assert rate_of(run(0.03, 5, ScheduledHyperParamSetter("learning_rate", schedule))) == 0.5
