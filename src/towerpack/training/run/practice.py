"""Trial runs: `fast_dev_run` and `overfit_batches`."""

from __future__ import annotations

import dataclasses
from typing import Any

from towerpack._core.errors import DataFlowError
from towerpack._core.logs import get_logger
from towerpack.dataflow import CacheData, DataFlow, FixedSizeData
from towerpack.training.config import TrainConfig
from towerpack.training.state.run_dir import run_dir_of

_LOG = get_logger(__name__)


def as_practice(config: TrainConfig) -> TrainConfig:
    steps, batches = int(config.fast_dev_run), config.overfit_batches
    if steps:
        epochs = min(steps, config.max_epoch)
        _LOG.warning(
            "fast_dev_run: %d epoch(s) of %d step(s), %d batch(es) per evaluation, in a separate "
            "run directory.",
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
                f"overfit_batches needs a DataFlow, got dataflow={config.dataflow!r}."
            )
        _LOG.warning("overfit_batches: training and evaluation use only %d batch(es).", batches)
        return dataclasses.replace(
            config,
            dataflow=CacheData(FixedSizeData(config.dataflow, batches, keep_state=False)),
            run_dir=_beside(config, f"overfit-{batches}"),
        )
    return config


def overfitted(config: TrainConfig, seed: int) -> list[Any] | None:
    if not config.overfit_batches:
        return None
    with config.dataflow.iterate(seed=seed, epoch=0) as batches:
        return [*batches]


def _beside(config: TrainConfig, mode: str) -> str:
    return f"{str(run_dir_of(config.run_dir)).rstrip('/')}-{mode}"
