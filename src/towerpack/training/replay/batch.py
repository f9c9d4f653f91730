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
from towerpack.dataflow.stage_context import StageContext
from towerpack.inputs import InputSource, QueueInput, SplitInput, as_input
from towerpack.model import as_model
from towerpack.training.config import TrainConfig
from towerpack.training.replay.history import Segment, read_history
from towerpack.training.run.practice import as_practice
from towerpack.training.run.regroup import regrouped
from towerpack.training.state.data_log import DataStart
from towerpack.training.state.run_dir import default_run_dir
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
        ConfigError: The run has not trained this step, or the data are not those of the run.
        StateError: The pipeline is not that of the run.
    """
    return open_replay(run_or_config, data).batch(step, replica)


def open_replay(
    run_or_config: str | os.PathLike[str] | TrainConfig,
    data: DataFlow | InputSource | None = None,
) -> Replay:
    """Return a reader of the steps of a run. The arguments are as for `batch_of_step`."""
    model = None
    if isinstance(run_or_config, TrainConfig):
        config = as_practice(run_or_config)
        model, run = config.model, Path(config.run_dir or default_run_dir())
        data = config.data if config.dataflow is None else config.dataflow
    else:
        run = Path(run_or_config)
    if data is None:
        raise ConfigError(
            f"The data of {run} are needed to read a step again.",
            fix="pass the TrainConfig instead of the directory, or pass data=",
        )
    return Replay(run, data, model)


class Replay:
    """Reader of the batches of a run's past steps."""

    def __init__(self, run: Path, data: Any, model: Any = None) -> None:
        self.history = read_history(run)
        self._data, self.model = data, model
        self._source: tuple[DataStart, int, InputSource] | None = None

    def batch(self, step: int, replica: int = 0) -> StepBatch:
        """Read the batch of a step; see `batch_of_step`."""
        segment = self.history.segment_of(step)
        start = segment.start
        number = start.replicas * start.workers
        if not 0 <= replica < number:
            raise ConfigError(f"replica must be from 0 to {number - 1}, got {replica}.")
        worker, local = divmod(replica, start.replicas)
        source = self.source(segment, worker)
        flow = getattr(source, "dataflow", None)
        inexact = inexact_stages(flow) if isinstance(flow, DataFlow) else []
        if inexact:
            _LOG.warning(
                "The batch of step %d is exact only if %s yield the same datapoints again.",
                step,
                " and ".join(inexact),
            )
        state, ahead = self.history.before(segment, step, nearest=not _has_plan(flow))
        batch = source.read_step(state, ahead)
        if batch is None or batch[0] is None:
            raise ConfigError(f"A {type(source).__name__} cannot read past steps again.")
        names = [str(spec.name) for spec in self._specs(start)]
        arrays = batch[0][local * len(names) :][: len(names)]
        return StepBatch(
            step, replica, dict(zip(names, arrays, strict=True)), batch[1][local], inexact
        )

    def source(self, segment: Segment, worker: int) -> InputSource:
        """Return the source of the data of a worker."""
        start = segment.start
        if self._source is None or self._source[:2] != (start, worker):
            first = _source_of(self._data, start, 0)
            new = {name: described(value) for name, value in data_settings(first).items()}
            old = {name: value for name, value in start.settings.items() if name in new}
            changed = changes(old, new) if old else []
            if changed:
                raise ConfigError(
                    f"The pipeline is not that of {self.history.run}.",
                    details="\n".join(
                        f"{c.name}: {c.old!s:.200} in the run, {c.new!s:.200} in the program"
                        for c in changed
                    ),
                    fix="build the pipeline as it was when the run was trained",
                )
            source = first if worker == 0 else _source_of(self._data, start, worker)
            source.setup(self._specs(start), seed=start.seed, replicas=start.replicas)
            self._source = start, worker, source
        return self._source[2]

    def _specs(self, start: DataStart) -> Any:
        if not start.inputs and self.model is None:
            raise ConfigError(
                f"{self.history.run} does not record the inputs of its model.",
                fix="pass the TrainConfig instead of the directory",
            )
        return start.specs or as_model(self.model).inputs()


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


def _has_plan(flow: Any) -> bool:
    return isinstance(flow, DataFlow) and flow.compile_in(StageContext(0, serial=True)) is not None
