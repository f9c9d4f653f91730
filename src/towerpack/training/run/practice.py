"""Trial runs: a few steps of everything, or the same few batches again and again."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from towerpack._core.errors import DataFlowError
from towerpack._core.logs import get_logger
from towerpack.dataflow import CacheData, DataFlow, FixedSizeData
from towerpack.training.config import TrainConfig
from towerpack.training.state.run_dir import default_run_dir

_LOG = get_logger(__name__)


def as_practice(config: TrainConfig) -> TrainConfig:
    """What a configuration's `fast_dev_run` or `overfit_batches` comes to."""
    steps, batches = int(config.fast_dev_run), config.overfit_batches
    if steps:
        epochs = min(steps, config.max_epoch)
        _LOG.warning(
            "fast_dev_run: epochs: %d, steps in each: %d, batches of an evaluation: %d, in a run "
            "directory of its own.",
            epochs,
            steps,
            steps,
        )
        return dataclasses.replace(
            config,
            steps_per_epoch=steps,
            max_epoch=epochs,
            run_dir=_beside(config, "fast-dev-run"),
            resume="never",
            on_existing="delete",
        )
    if batches:
        if not isinstance(config.dataflow, DataFlow):
            raise DataFlowError(
                f"overfit_batches={batches} needs a DataFlow.", got=f"dataflow={config.dataflow!r}"
            )
        _LOG.warning("overfit_batches: training and evaluation see %d batch(es) only.", batches)
        return dataclasses.replace(
            config,
            dataflow=CacheData(FixedSizeData(config.dataflow, batches, keep_state=False)),
            run_dir=_beside(config, f"overfit-{batches}"),
        )
    return config


def overfitted(config: TrainConfig, seed: int) -> list[Any] | None:
    """The batches that `overfit_batches` trains on; None without it."""
    if not config.overfit_batches:
        return None
    with config.dataflow.iterate(seed=seed, epoch=0) as batches:
        return [*batches]


def _beside(config: TrainConfig, mode: str) -> Path:
    path = default_run_dir() if config.run_dir is None else Path(config.run_dir)
    return path.with_name(f"{path.name}-{mode}")
