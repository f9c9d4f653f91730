"""What a training tells its monitors besides numbers; a monitor that fails while it goes on."""

from __future__ import annotations

import time
from pathlib import Path

import keras
import pytest
import tensorflow as tf

from small_training import Model, train
from towerpack.callbacks import CallbackFactory, ModelSaver, StopAfter
from towerpack.callbacks.monitors import Monitor, TensorBoardMonitor, read_stats
from towerpack.training import VariableParam
from towerpack.training.state.run_dir import read_record


class Down(Monitor):
    def end_epoch(self) -> None:
        raise ConnectionError("refused")


def test_slow_callbacks_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of one that takes a second and one that takes nothing, in a training that does no more."""
    caplog.set_level("INFO", "towerpack")
    slow = CallbackFactory(before_epoch=lambda self: time.sleep(0.6))
    train(tmp_path, [slow, StopAfter(steps=1000)], max_epoch=2)
    (told,) = (r.getMessage() for r in caplog.records if "much of the time" in r.getMessage())
    assert "CallbackFactory " in told and "StopAfter" not in told


def test_graph_and_settings_reach_tensorboard(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    hparams = pytest.importorskip("tensorboard.plugins.hparams.metadata")
    trainer = train(tmp_path / "run", monitors=[TensorBoardMonitor(tmp_path / "events"), Down()])
    assert trainer.complete and isinstance(trainer.hyper_param("learning_rate"), VariableParam)
    assert caplog.text.count("Down failed (ConnectionError: refused). Training goes on") == 1
    found = accumulator.EventAccumulator(str(tmp_path / "events"))
    found.Reload()
    assert sum("fc0" in node.name and node.op == "MatMul" for node in found.Graph().node) == 1
    content = found.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    given = hparams.parse_session_start_info_plugin_data(content).hparams
    assert given["seed"].number_value == 5 and given["max_epoch"].number_value == 2
    assert read_record(tmp_path / "run")["settings"]["optimizer.momentum"] == 0.9
    # A run remembers its numbers, whoever else gets them.
    assert read_stats(tmp_path / "run" / "stats.jsonl")[-1].step == trainer.global_step
    assert given["learning_rate"].number_value == pytest.approx(0.05)


def test_a_continued_run_does_not_say_that_it_draws_values(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class WithLayer(Model):
        def __init__(self) -> None:
            super().__init__()
            self.layer = keras.layers.Dense(3)
            self.layer.build([None, 3])

        def build_graph(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
            return super().build_graph(self.layer(x), y)

    caplog.set_level("INFO", "towerpack")
    train(tmp_path, [ModelSaver()], model=WithLayer(), max_epoch=1)
    assert caplog.text.count("Drew initial values of") == 1
    train(tmp_path, [ModelSaver()], model=WithLayer(), max_epoch=2)
    assert caplog.text.count("Drew initial values of") == 1
