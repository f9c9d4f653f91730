"""From numbers to what limits a pipeline, and what to do about it."""

from __future__ import annotations

import os
from collections.abc import Sequence

from towerpack.dataflow._flow import DataFlow, Place, Wrapper, compile_flow
from towerpack.dataflow.profiling._report import StageProfile, Verdict
from towerpack.dataflow.stages._batch import BatchData, is_batched
from towerpack.dataflow.stages._map import MapData

_MOSTLY = 0.6
_MUCH = 0.3
_ON_CPU = 0.4
_FULLY_BUSY = 0.6
# Of Python for each single datapoint: a call, a copy and an index take 1 to 3 µs.
_CALL_S = 20e-6
_SIDE_BY_SIDE = (
    "read with several workers, which wait side by side: PrefetchData(ds, num_proc=8), also more "
    "than there are CPUs; or with fewer and longer reads"
)
_ONLY_IN_ORDER = (
    "it can only be read in order, so workers do not help: a source with __len__ and __getitem__, "
    "which they read side by side; longer reads; of remote data, more or faster producers"
)
_HAND_OVER_S = 150e-6  # what a datapoint costs that comes from another process


def judge(
    stages: Sequence[tuple[DataFlow, StageProfile]],
    *,
    consuming: float,
    waiting: float,
    workers: Sequence[float],
    reader: float,
    threads: bool,
    each: float,
    cpus: int,
) -> Verdict:
    """Name the bottleneck.

    Args:
        stages: Flows, and how they did.
        consuming: Share of the time in which the loop used datapoints.
        waiting: Share of the time in which it waited for workers.
        workers: How busy each was.
        reader: How busy the thread was that reads in order for them, if there is one.
        threads: Whether they are threads of this process.
        each: Seconds per datapoint that the loop gets.
        cpus: How many there are for this process.
    """
    if consuming >= _MOSTLY:
        return Verdict(
            f"the loop that uses the datapoints: {consuming:.0%} of the time",
            "nothing here: data are ready before they are asked for. Make the step faster, or "
            "give it fewer CPUs to share with the workers if it computes on them.",
        )
    if waiting < _MUCH:
        flow, stage = max(stages, key=lambda pair: _seconds(pair, "loop"))
        return _of_stage(flow, stage, each=each, workers=bool(workers), cpus=cpus)
    if reader >= _FULLY_BUSY and reader >= max(workers, default=0.0):
        flow, stage = max(stages, key=lambda pair: _seconds(pair, "reader"))
        return Verdict(
            f"reading in order, which one thread does for all workers: mostly {stage.name}, "
            f"{1e6 * stage.seconds_each:,.1f} µs per datapoint",
            "an indexable source (__len__ and __getitem__), which workers read themselves; or move "
            "work from it into a map",
        )
    flow, stage = max(stages, key=lambda pair: _seconds(pair, "workers"))
    if threads and len(workers) > 1 and _FULLY_BUSY <= sum(workers) < 1 + _MUCH:
        return Verdict(
            f"the interpreter's lock: {len(workers)} threads do the work of one, mostly with "
            f"{stage.name}",
            'processes: backend="process", or functions that let go of the lock (NumPy, OpenCV)',
        )
    if max(workers, default=0.0) < _FULLY_BUSY:
        return Verdict(
            f"handing over: the loop waits {waiting:.0%} of the time, and workers are busy at most "
            f"{max(workers, default=0.0):.0%}",
            "send less between processes (uint8 instead of float32, decode and crop before), or "
            "read from a faster source in order to keep them busy",
        )
    return _of_workers(stage, waiting=waiting, workers=workers, cpus=cpus)


def _seconds(pair: tuple[DataFlow, StageProfile], where: str) -> float:
    return pair[1].seconds if pair[1].where == where else -1.0


def _of_workers(
    stage: StageProfile, *, waiting: float, workers: Sequence[float], cpus: int
) -> Verdict:
    busy = [share for share in workers if share >= _FULLY_BUSY]
    bottleneck = (
        f"too few workers: {len(busy)} of {len(workers)} are busy all the time, mostly with "
        f"{stage.name}, and the loop waits {waiting:.0%} of it"
    )
    if stage.on_cpu < _ON_CPU:
        return Verdict(
            bottleneck,
            f"more workers, also more than the {cpus} CPUs: they wait rather than compute",
        )
    if len(busy) < len(workers):
        return Verdict(
            f"one worker: of {len(workers)} only {len(busy)} has enough to do",
            "read further ahead: a larger num_prefetch, or smaller batches",
        )
    if len(workers) < cpus:
        return Verdict(bottleneck, f"more workers: there are {cpus} CPUs")
    return Verdict(
        bottleneck,
        f"all {cpus} CPUs are at work: make {stage.name} cheaper (smaller pictures, cached "
        "results, vectorised code), or take more CPUs",
    )


def _of_stage(
    flow: DataFlow, stage: StageProfile, *, each: float, workers: bool, cpus: int
) -> Verdict:
    micros = f"{1e6 * stage.seconds_each:,.1f} µs per datapoint"
    if not workers and stage.on_cpu < _ON_CPU:
        return Verdict(
            f"{stage.name} waits (for a disk, a network): {micros}, of which it computes "
            f"{stage.on_cpu:.0%}",
            _SIDE_BY_SIDE if _can_be_shared_out(flow) else _ONLY_IN_ORDER,
        )
    bottleneck = f"{stage.name}: {micros}, {stage.share:.0%} of the work"
    if _is_cost_of_calls(flow, stage.seconds_each):
        return Verdict(
            f"the cost of a call per datapoint, not the work: {bottleneck}",
            "do many at once: MapData(..., batched=True) all the way from the source, or map "
            "after BatchData, where the function gets a batch",
        )
    if workers:
        return Verdict(
            f"{bottleneck}, in the loop, while workers wait for it",
            "move it below PrefetchData, so that workers do it",
        )
    if each < _HAND_OVER_S:
        return Verdict(
            bottleneck,
            f"little: at {1 / each:,.0f} datapoints a second, handing them over from workers would "
            "cost more than it saves",
        )
    return Verdict(
        bottleneck,
        f"let workers do it: PrefetchData(ds, num_proc={cpus}) as the last stage, or make it "
        "cheaper (cached, vectorised, smaller)",
    )


def _can_be_shared_out(flow: DataFlow) -> bool:
    """Whether workers can do it: maps also over what is read in order."""
    return isinstance(flow, MapData) or compile_flow(flow, Place(0)) is not None


def _is_cost_of_calls(flow: DataFlow, seconds_each: float) -> bool:
    """Whether a stage mostly calls Python, or stacks what it returned, for single datapoints."""
    if isinstance(flow, BatchData):
        return _maps_singly(flow.ds) and seconds_each < _CALL_S * flow.batch_size
    return isinstance(flow, MapData) and _maps_singly(flow) and seconds_each < _CALL_S


def _maps_singly(flow: DataFlow) -> bool:
    """Whether datapoints come out of a function one by one."""
    while isinstance(flow, Wrapper) and not flow.makes_batches:
        if isinstance(flow, MapData):
            return not flow.batched and not is_batched(flow)
        flow = flow.ds
    return False


def count_cpus() -> int:
    """CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
