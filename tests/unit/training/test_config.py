"""What a configuration refuses."""

from __future__ import annotations

from typing import Any

import keras
import pytest

from towerpack import CallbackError, ConfigError, DataFlowError
from towerpack.callbacks import ModelSaver
from towerpack.dataflow import DataFromList
from towerpack.training import (
    AsyncMultiGPUTrainer,
    SimpleTrainer,
    SyncMultiGPUTrainer,
    SyncMultiGPUTrainerParameterServer,
    TrainConfig,
)

FLOW = DataFromList([1])


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({}, "neither"),
        ({"dataflow": FLOW, "data": FLOW}, "both"),
        ({"dataflow": FLOW, "max_epoch": 0}, "max_epoch must be .* got 0"),
        ({"dataflow": FLOW, "steps_per_epoch": 2.5}, "steps_per_epoch must be .* got 2.5"),
        ({"dataflow": FLOW, "steps_per_epoch": -1}, "steps_per_epoch must be .* got -1"),
        ({"dataflow": FLOW, "precision": "float8"}, "float8"),
        ({"dataflow": FLOW, "xla": True, "deterministic": True}, "does not support xla=True"),
        ({"dataflow": FLOW, "xla": True, "eager": True}, "leave out xla"),
        ({"dataflow": FLOW, "fast_dev_run": -1}, "fast_dev_run must be .* got -1"),
        ({"dataflow": FLOW, "fast_dev_run": True, "overfit_batches": 1}, "set only one"),
        (
            {"dataflow": FLOW, "fast_dev_run": True, "resume": "run"},
            "fast_dev_run uses a separate run",
        ),
        ({"dataflow": FLOW, "overfit_batches": 0}, "overfit_batches must be .* got 0"),
        ({"data": FLOW, "overfit_batches": 2}, "needs a DataFlow, got data="),
    ],
)
def test_contradictions(kwargs: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        TrainConfig(model=None, **kwargs)


def test_what_only_a_trainer_can_tell() -> None:
    model = ([], lambda: None)
    with pytest.raises(ConfigError, match="must be a ModelDesc"):
        SimpleTrainer(TrainConfig(model=3, dataflow=FLOW))
    with pytest.raises(DataFlowError, match="must be an InputSource, a DataFlow or"):
        SimpleTrainer(TrainConfig(model=model, dataflow=[1, 2]))
    with pytest.raises(CallbackError, match="callback is expected"):
        SimpleTrainer(TrainConfig(model=model, dataflow=FLOW, callbacks=[ModelSaver]))  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("max_epochs", "max_epoch"),
        ("callback", "callbacks"),
        ("steps_per_epochs", "steps_per_epoch"),
    ],
)
def test_near_misses_of_settings_are_named(name: str, known: str) -> None:
    with pytest.raises(TypeError, match=f"'{name}'.*Did you mean '{known}'"):
        TrainConfig(model=3, dataflow=FLOW, **{name: 1})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("callback", "ours"),
    [
        (keras.callbacks.EarlyStopping(), r"towerpack\.callbacks\.EarlyStopping"),
        (keras.callbacks.ModelCheckpoint, "ModelSaver"),
        (keras.callbacks.ReduceLROnPlateau(), "StatMonitorParamSetter"),
        (keras.callbacks.LambdaCallback(), "subclass of towerpack.*after_step.*request_stop"),
        (keras.callbacks.BackupAndRestore("x"), "resumed by default"),
        (type("Mine", (keras.callbacks.TensorBoard,), {})(), "TensorBoardMonitor"),
    ],
)
def test_callbacks_of_keras_are_refused_with_ours(callback: Any, ours: str) -> None:
    with pytest.raises(CallbackError, match=ours):
        SimpleTrainer(TrainConfig(model=([], lambda: None), dataflow=FLOW, callbacks=[callback]))


@pytest.mark.parametrize("devices", [["CPU:0", "CPU:9"], ["CPU:7", "CPU:8"], ["CPU:0", "TPU:0"]])
def test_a_missing_device_is_refused_with_how_to_make_it(devices: list[str]) -> None:
    config = TrainConfig(model=([], lambda: None), dataflow=FLOW)
    for trainer in (SyncMultiGPUTrainer, SyncMultiGPUTrainerParameterServer, AsyncMultiGPUTrainer):
        with pytest.raises(ConfigError, match="no device") as raised:
            trainer(config, devices=devices)
        assert "tf.config.set_logical_device_configuration" in (raised.value.fix or "")


def test_everything_is_named() -> None:
    with pytest.raises(TypeError):
        TrainConfig(None, FLOW)  # type: ignore[misc]


def test_one_pattern_is_a_list_of_one() -> None:
    config = TrainConfig(model=3, dataflow=FLOW, trainable="fc/.*", frozen="conv")
    assert (config.trainable, config.frozen) == (["fc/.*"], ["conv"])
