"""Continuation of a run of several workers by another number of workers, on the same batches.

Each replica reads batches of its own, so the batches of all replicas in a step are one global
batch. A run that continues with another number of replicas divides the rows of these global batches
among them, so the steps, and the order of the rows, stay the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Any

from towerpack._core.errors import ConfigError
from towerpack._core.logs import get_logger
from towerpack.checkpoint import Checkpoint
from towerpack.dataflow import BatchData, DataFlow, PrefetchData, RepeatedData, ShardData, ShardRows
from towerpack.dataflow.pipeline_names import is_shard
from towerpack.inputs import QueueInput, SplitInput
from towerpack.training.run.opening import steps_of_one_pass
from towerpack.training.run.parts import RunParts

_LOG = get_logger(__name__)


def regroup(parts: RunParts, checkpoint: Checkpoint | None) -> RunParts:
    """Return parts that continue the global batches of a checkpoint with any number of replicas.

    The position in the checkpoint's state is converted in place. The parts are returned unchanged
    if they read these batches anyway, or if the data are not one plan that all workers share, with
    `BatchData` at its end.
    """
    distribution, config = parts.distribution, parts.config
    flow = config.data if config.dataflow is None else config.dataflow
    if checkpoint is None or not isinstance(flow, DataFlow) or not _is_divided(parts, flow):
        return parts
    state = checkpoint.state.get("data")
    batches = checkpoint.state.get("settings", {}).get("replicas", distribution.replicas)
    whole = _with_batch(flow, lambda batch: _enlarged(batch, batches))
    if whole is None or not isinstance(state, dict):
        return parts
    position, signature = _position(state, flow, whole, batches), _signature(whole)
    same = distribution.replicas == batches
    if position is None or (same and (batches == 1 or state["flow"] != signature)):
        return parts
    checkpoint.state["data"] = {**state, "flow": signature, "at": position}
    source = _divided(whole, distribution.team.size, distribution.team.index)
    steps = parts.state.steps_per_epoch = config.steps_per_epoch or steps_of_one_pass(source, 1)
    text = "Each step divides the rows of %d batches among %d replicas: %d steps per epoch."
    _LOG.info(text, batches, distribution.replicas, steps)
    return replace(parts, source=source, batches=batches)


def regrouped(flow: DataFlow, description: str) -> DataFlow:
    """Return the pipeline with the batch size of its description in a run."""

    def resized(batch: BatchData) -> BatchData:
        match = re.search(r"BatchData\((\d+)", description)
        factor, more = divmod(int(match[1]) if match else 1, batch.batch_size)
        return batch if more else _enlarged(batch, max(1, factor))

    return _with_batch(flow, resized) or flow


def _is_divided(parts: RunParts, flow: DataFlow) -> bool:
    """Return whether the workers share the data, so that the trainer divides them."""
    team, source = parts.distribution.team, parts.source
    if not team.divides_flows or is_shard(flow):
        return False
    return team.size == 1 or isinstance(getattr(source, "dataflow", None), ShardData)


def _divided(whole: DataFlow, workers: int, index: int) -> SplitInput:
    def part(batch: BatchData) -> DataFlow | None:
        return None if batch.batch_size % workers else ShardRows(batch, workers, index)

    rows = _with_batch(whole, part)
    if rows is None:
        return SplitInput(whole).share(workers, index)
    source = QueueInput(rows)
    source.dataflow = whole  # Describe the data without the index of this worker.
    return SplitInput(source)


def _with_batch(flow: DataFlow, change: Callable[[BatchData], DataFlow | None]) -> DataFlow | None:
    """Return a copy of a pipeline with another `BatchData` at its end, if there is one."""
    if isinstance(flow, PrefetchData):
        inner, flow = _with_batch(flow.ds, change), copy(flow)
        if inner is not None:
            flow.ds = inner
        return None if inner is None else flow
    return change(flow) if isinstance(flow, BatchData) and not flow.remainder else None


def _enlarged(batch: BatchData, factor: int) -> BatchData:
    batch = copy(batch)
    batch.batch_size = batch.window_size = batch.batch_size * factor
    return batch


def _position(state: Any, flow: DataFlow, whole: DataFlow, batches: int) -> int | None:
    """Return the number of global batches before a state. None if it is not at one's beginning."""
    if not isinstance(state.get("at"), int):
        return None
    if state["flow"] == _signature(whole):
        return state["at"]
    match = re.search(r"ShardData\((\d+)\)", state["flow"])
    shards = int(match[1]) if match else 1
    shard = ShardData(flow, shards, 0) if match else flow
    position, more = divmod(state["at"], batches // shards)
    if state["flow"] != _signature(shard) or more or len(shard) % (batches // shards):
        return None
    return position


def _signature(flow: DataFlow) -> str | None:
    try:
        return RepeatedData(flow, -1).plan(seed=0).signature
    except ConfigError:  # a stream, whose positions depend on the number of workers
        return None
