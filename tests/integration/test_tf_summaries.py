"""TensorFlow's own summaries inside a tower: the monitors get them, or they are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from small_training import Model, PacedBy, X, flow, train
from towerpack import LayerError
from towerpack.callbacks import InferenceRunner, ScalarStats
from towerpack.callbacks.monitors import Monitor
from towerpack.nn import FullyConnected, get_current_tower_context
from towerpack.training.loop import loop

V1 = tf.compat.v1.summary

pytestmark = pytest.mark.filterwarnings("ignore:Cannot activate TF2 compatibility")


class Reporting(Model):
    def __init__(self, report: Callable[[tf.Tensor, tf.Tensor], Any]) -> None:
        super().__init__(lambda: keras.optimizers.SGD(0.01))
        self._report = report

    def build_graph(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        cost = tf.reduce_mean(tf.square(FullyConnected("fc", x, 1)[:, 0] - y))
        self._report(x, cost)
        return cost


class Kept(Monitor):
    def __init__(self) -> None:
        self.got: dict[str, Any] = {}

    def put_scalar(self, name: str, value: float, step: int) -> None:
        self.got[name] = value

    def put_image(self, name: str, image: np.ndarray, step: int) -> None:
        self.got[name] = image.shape

    def put_histogram(self, name: str, values: np.ndarray, step: int) -> None:
        self.got[name] = len(values)


def test_summaries_of_version_1_reach_the_monitors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "Pace", PacedBy)

    def report(x: tf.Tensor, cost: tf.Tensor) -> None:
        V1.scalar("cost", cost)
        with tf.name_scope("more"):
            V1.scalar("largest", tf.reduce_max(x))
        V1.histogram("inputs", x)
        V1.image("picture", tf.reshape(x, [-1, 3, 1, 1]), max_outputs=2)
        V1.merge_all()

    kept = Kept()
    trainer = train(tmp_path, model=Reporting(report), monitors=[kept], max_epoch=1)
    # The last of six batches of eight.
    assert kept.got["more/largest"] == X[40:].max()
    assert kept.got["inputs"] == 24
    assert [n for n in kept.got if "picture" in n] == ["picture/0", "picture/1"]
    assert kept.got["picture/0"] == (3, 1, 1)
    assert [n for n in trainer.monitors.names() if "cost" in n] == ["cost"]


def inside(report: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, cost: tf.function(report)(x, cost)


def branch(x: tf.Tensor, cost: tf.Tensor) -> None:
    tf.cond(cost > 0, lambda: (V1.scalar("positive", cost), 1)[1], lambda: 0)


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "scalar": (lambda x, cost: tf.summary.scalar("a/loss", cost, step=1), "a/loss"),
    "histogram": (lambda x, cost: tf.summary.histogram("inputs", x, step=1), "inputs"),
    "image": (lambda x, cost: tf.summary.image("picture", x[:, :, None, None], 10), "picture"),
    "text": (lambda x, cost: tf.summary.text("words", "words", step=1), "words"),
    "function": (inside(lambda x, cost: tf.summary.scalar("loss", cost, step=1)), "loss"),
    "version 1 in a function": (inside(lambda x, cost: V1.scalar("loss", cost)), "loss"),
    "version 1 in a branch": (branch, "positive"),
    "audio": (lambda x, cost: V1.audio("sound", x, 8000.0), "sound"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_nobody_would_get_is_refused(tmp_path: Path, kind: str) -> None:
    report, name = REFUSED[kind]
    with pytest.raises(LayerError, match=rf"(?s)have no writer: \S*{name}.*nn.summary"):
        train(tmp_path, model=Reporting(report))


def test_what_only_an_evaluation_reports_is_refused_too(tmp_path: Path) -> None:
    def report(x: tf.Tensor, cost: tf.Tensor) -> None:
        if not get_current_tower_context().is_training:
            tf.summary.scalar("seldom", cost, step=1)

    evaluation = InferenceRunner(flow(), ScalarStats("cost"))
    with pytest.raises(LayerError, match="have no writer: seldom"):
        train(tmp_path, callbacks=[evaluation], model=Reporting(report))


def test_a_writer_of_ones_own_gets_what_it_is_given(tmp_path: Path) -> None:
    def report(x: tf.Tensor, cost: tf.Tensor) -> None:
        tf.summary.scalar("loss", cost, step=tf.constant(1, tf.int64))

    writer = tf.summary.create_file_writer(str(tmp_path / "own"))
    with writer.as_default():
        trainer = train(tmp_path / "run", model=Reporting(report), max_epoch=1)
    writer.close()
    (events,) = (tmp_path / "own").glob("events*")
    records = list(tf.compat.v1.train.summary_iterator(str(events)))
    assert len(records) == 1 + trainer.global_step
