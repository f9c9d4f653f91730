"""Batches of past steps, read again."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from towerpack._core.errors import ConfigError
from towerpack._core.logs import get_logger
from towerpack.dataflow import DataFlow, Origin, ShardData
from towerpack.dataflow.pipeline_names import is_shard
from towerpack.dataflow.replay import inexact_stages
from towerpack.inputs import InputSource, QueueInput, SplitInput, as_input
from towerpack.training.config import TrainConfig
from towerpack.training.replay.history import Segment, read_history
from towerpack.training.run.practice import as_practice
from towerpack.training.run.regroup import regrouped
from towerpack.training.state.data_log import DataStart
from towerpack.training.state.run_dir import run_dir_of
from towerpack.training.state.setting_to_json import described
from towerpack.training.state.settings import changes, data_settings

_LOG = get_logger(__name__)


@dataclass(frozen=True)
class StepBatch:
    """Batch that a replica consumed in a step.

    Attributes:
        step: Step, from 1.
        replica: Replica, from 0, counted over all workers.
        arrays: Inputs of the model by name.
        origins: Source rows of the batch, in order. Empty for a `tf.data.Dataset`.
        inexact: Stages that may have yielded other datapoints at that time, such as generators.
    """

    step: int
    replica: int
    arrays: dict[str, np.ndarray]
    origins: list[Origin]
    inexact: Sequence[str] = ()


def batch_of_step(
    run_or_config: str | os.PathLike[str] | TrainConfig,
    step: int,
    replica: int = 0,
    *,
    data: DataFlow | InputSource | None = None,
) -> StepBatch:
    """Read the batch of a past step again, with the source rows from which it was made.

    If the pipeline has a plan, this takes as long as reading one batch. Other pipelines read their
    data again from the nearest checkpoint.

    Args:
        run_or_config: Configuration of the run, or its directory.
        step: Step, from 1.
        replica: Replica, from 0, counted over all workers.
        data: Data of the run, if `run_or_config` is a directory.

    Raises:
        ConfigError: The run has not trained this step, or trained it asynchronously, or the data
            are not those of the run.
        StateError: The pipeline is not that of the run.
    """
    return Replay(run_or_config, data).batch(step, replica)


class Replay:
    """Reader of the batches of a run's past steps. The arguments are as for `batch_of_step`."""

    def __init__(
        self,
        run_or_config: str | os.PathLike[str] | TrainConfig,
        data: DataFlow | InputSource | None = None,
    ) -> None:
        self.model: Any = None
        if isinstance(run_or_config, TrainConfig):
            config = as_practice(run_or_config)
            self.model, run_or_config = config.model, run_dir_of(config.run_dir)
            data = config.data if config.dataflow is None else config.dataflow
        if data is None:
            raise ConfigError(
                f"The data of {run_or_config} are needed to read a step again.",
                fix="pass the TrainConfig instead of the directory, or pass data=",
            )
        self.history = read_history(Path(run_or_config))
        self._data = data
        self._source: tuple[DataStart, int, InputSource] | None = None
        self._inexact: list[str] = []

    def batch(self, step: int, replica: int = 0) -> StepBatch:
        """Read the batch of a step; see `batch_of_step`."""
        segment = self.history.segment_of(step)
        start = segment.start
        if not 0 <= replica < start.all_replicas:
            raise ConfigError(f"replica must be from 0 to {start.all_replicas - 1}, got {replica}.")
        worker, local = divmod(replica, start.replicas)
        source = self.source(segment, worker)
        place = self.history.before(segment, step)
        batch = None if start.asynchronous else source.read_step(*place)
        if batch is None:
            raise ConfigError(
                f"The batch of step {step:,} is unknown: {type(source).__name__} cannot read past "
                "steps, or devices that do not wait for each other took batches in any order."
            )
        names = [str(name) for name, *_ in start.inputs]
        arrays = dict(zip(names, batch[0][local * len(names) :], strict=False))
        return StepBatch(step, replica, arrays, batch[1][local], self._inexact)

    def difference(self, segment: Segment) -> str:
        """Describe how the pipeline differs from that of a segment. Empty if they are equal."""
        source = _source_of(self._data, segment.start, 0)
        new = {name: described(value) for name, value in data_settings(source).items()}
        old = {name: value for name, value in segment.start.settings.items() if name in new}
        return "\n".join(
            f"{c.name}: {c.old!s:.200} in the run, {c.new!s:.200} in the program"
            for c in (changes(old, new) if old else [])
        )

    def source(self, segment: Segment, worker: int) -> InputSource:
        """Return the source of the data of a worker. Warn if it may yield other datapoints."""
        start = segment.start
        if self._source is not None and self._source[:2] == (start, worker):
            return self._source[2]
        if difference := self.difference(segment):
            raise ConfigError(
                f"The pipeline is not that of {self.history.run} in steps "
                f"{start.step + 1:,} to {segment.stop:,}.",
                details=difference,
                fix="build the pipeline as it was when the run was trained",
            )
        source = _source_of(self._data, start, worker)
        source.setup(start.specs, seed=start.seed, replicas=start.replicas)
        self._source = start, worker, source
        flow = getattr(source, "dataflow", None)
        known = isinstance(flow, DataFlow)
        self._inexact = inexact_stages(flow) if known else [f"the data of {type(source).__name__}"]
        if self._inexact:
            text = "Batches of past steps are exact only if %s yield the same datapoints again."
            _LOG.warning(text, " and ".join(self._inexact))
        return source


def _source_of(data: Any, start: DataStart, worker: int) -> InputSource:
    """Return the source of a worker, from the data that the program passes to the trainer."""
    if isinstance(data, DataFlow):
        divided = "ShardData(" in str(start.settings.get("data"))
        if start.workers > 1 and divided and not is_shard(data):
            data = ShardData(data, start.workers, worker)
        split = "SplitInput" in start.sources
        data = regrouped(data, str(start.settings.get("data"))) if split else data
        data = QueueInput(data, infinite=start.infinite)
        if split:
            data = SplitInput(data)
    source = as_input(data)
    return source.share(start.workers, worker) if isinstance(source, SplitInput) else source
