"""Trainers that are made before they have a configuration."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from small_training import config
from towerpack import ConfigError, logger
from towerpack.training import (
    SimpleTrainer,
    SyncMultiGPUTrainer,
    SyncMultiGPUTrainerParameterServer,
    get_num_gpu,
    launch_train_with_config,
)
from towerpack.training.state.run_dir import choose_run_dir


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    choose_run_dir(None)


def test_configuration_first_or_last_is_the_same(tmp_path: Path) -> None:
    logger.set_logger_dir(tmp_path / "log")
    ours = config(tmp_path, max_epoch=1)
    ours.run_dir = None
    trainer = SyncMultiGPUTrainerParameterServer(max(get_num_gpu(), 1))
    launch_train_with_config(ours, trainer)
    assert trainer.run_dir == tmp_path / "log" and trainer.global_step == 6
    launch_train_with_config(config(tmp_path / "class", max_epoch=1), SimpleTrainer)
    assert (tmp_path / "class" / "run.json").exists()


def test_without_or_with_two_configurations(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="SimpleTrainer has no configuration"):
        SimpleTrainer().train()
    with pytest.raises(ConfigError, match="already has a configuration"):
        launch_train_with_config(config(tmp_path), SimpleTrainer(config(tmp_path)))


def test_what_is_set_after_the_configuration_was_made_counts(tmp_path: Path) -> None:
    ours = config(tmp_path)
    ours.max_epoch = 0
    with pytest.raises(ConfigError, match="max_epoch must be"):
        SimpleTrainer(ours)
    with pytest.raises(AttributeError, match="nr_tower"):
        ours.nr_tower = 2  # type: ignore[attr-defined]


def test_devices_in_the_predecessors_place(tmp_path: Path) -> None:
    for devices in (get_num_gpu() + 2, [get_num_gpu() + 1], ["GPU:99"]):
        with pytest.raises(ConfigError, match="no device 'GPU:"):
            SyncMultiGPUTrainer(devices)
    with pytest.raises(ConfigError, match="must be a TrainConfig"):
        SyncMultiGPUTrainer(["CPU:0"], devices=["CPU:0"])
    SyncMultiGPUTrainer(["CPU:0"]).configure(config(tmp_path))
