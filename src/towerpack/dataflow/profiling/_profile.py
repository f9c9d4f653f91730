from __future__ import annotations

import math
import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from textwrap import wrap
from time import perf_counter as clock
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError
from towerpack.dataflow._compile import ParallelStage
from towerpack.dataflow._flow import DataFlow
from towerpack.dataflow._progress import endless, progress
from towerpack.dataflow.arguments import repr_of
from towerpack.dataflow.datapoints import Datapoint
from towerpack.dataflow.parallel._options import usable_cpus
from towerpack.dataflow.pipeline_names import name_of_stage
from towerpack.dataflow.profiling._probes import FIELDS, SECONDS, name_of_thread, probed
from towerpack.dataflow.stage_context import StageContext
from towerpack.dataflow.stages._batch import is_batched
from towerpack.dataflow.stages._map import MapData

Where = Literal["loop", "reader", "workers"]

_LEAST_BUSY = 0.01
_READER = "towerpack-data-reader"  # thread of `parallel` that reads in order
_MOSTLY = 0.6
_MUCH = 0.3
_ON_CPU = 0.4
_CALL_S = 20e-6  # below, Python's overhead of 1 to 3 µs per datapoint matters
_TRANSFER_S = 150e-6  # cost of a datapoint from another process

_IN_ORDER = "index the source, or move work into a map; workers do not speed up reading in order"
_SIDE_BY_SIDE = (
    "use workers, which wait at the same time: PrefetchData(ds, num_proc=8); or read more at once"
)


@dataclass(frozen=True)
class StageProfile:
    """Measured work of one stage.

    Attributes:
        name: Name of the stage as in error messages.
        where: "loop" for the thread that consumes the data, "reader" for the thread that reads in
            order for workers, or "workers".
        datapoints: Number of datapoints that the stage returned.
        seconds: Time in the stage without the stages before it, summed over all workers.
        share: Fraction of the time of all stages.
        on_cpu: Fraction of `seconds` spent computing. In the rest, the stage waited, for example
            for a disk.
        calls: Whether the stage calls a function for every single datapoint.
        divisible: Whether several workers can share the work.
    """

    name: str
    where: Where
    datapoints: int
    seconds: float
    share: float
    on_cpu: float = 1.0
    calls: bool = False
    divisible: bool = True

    @property
    def seconds_each(self) -> float:
        """Time per datapoint in seconds."""
        return self.seconds / max(1, self.datapoints)


@dataclass(frozen=True)
class Verdict:
    """Bottleneck of a pipeline, and advice on removing it."""

    bottleneck: str
    advice: str


@dataclass(frozen=True)
class ProfileReport:
    """Measurements of a pipeline. `print` shows them as a table.

    Attributes:
        pipeline: Description of the pipeline.
        datapoints: Number of datapoints read after the first.
        seconds: Time to read these datapoints.
        first_s: Time until the first datapoint in seconds.
        stages: Profiles of the stages, sources first.
        consuming: Fraction of the time in which the loop used datapoints.
        waiting: Fraction of the time in which the loop waited for workers. In the remaining time,
            the loop ran stages itself.
        workers: Busy fraction of each worker.
        reader: Busy fraction of the thread that reads in order for workers, or 0 without one.
        threads: Whether the workers are threads of this process.
        verdict: The bottleneck and advice.
    """

    pipeline: str
    datapoints: int
    seconds: float
    first_s: float
    stages: list[StageProfile]
    consuming: float = 0.0
    waiting: float = 0.0
    workers: list[float] = field(default_factory=list[float])
    reader: float = 0.0
    threads: bool = False
    verdict: Verdict = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "verdict", Verdict(*_judge(self)))

    @property
    def datapoints_per_second(self) -> float:
        """Rate after the first datapoint."""
        return self.datapoints / self.seconds

    def __str__(self) -> str:
        return self.text()

    def text(self, width: int = 100) -> str:
        """Return the table and a summary.

        Args:
            width: Largest number of columns.
        """
        room = min(max([5, *(len(stage.name) for stage in self.stages)]), width - 48)
        lines = [f"{'stage':<{room}}{'datapoints':>13}{'µs each':>11}  share  waits  where"]
        lines.append("─" * (room + 48))
        for stage in self.stages:
            name = stage.name if len(stage.name) <= room else f"{stage.name[: room - 1]}…"
            waits = f"{1 - stage.on_cpu:.0%}" if stage.on_cpu < 0.75 else ""
            each = 1e6 * stage.seconds_each
            numbers = f"{stage.datapoints:>13,}{each:>11,.1f}{stage.share:>7.0%}{waits:>7}"
            lines.append(f"{name:<{room}}{numbers}  {stage.where}")
        rate, each = self.datapoints_per_second, 1e6 * self.seconds / self.datapoints
        making = max(0.0, 1 - self.consuming - self.waiting)
        summary = {
            "pipeline": self.pipeline,
            "read": f"{self.datapoints:,} datapoints in {self.seconds:.2f} s: {rate:,.1f} /s, "
            f"{each:,.1f} µs each; the first after {self.first_s:.2f} s",
            "loop": f"{self.consuming:.0%} using datapoints, {making:.0%} making them, "
            f"{self.waiting:.0%} waiting for workers",
            "workers": ", ".join(f"{share:.0%} busy" for share in self.workers),
            "reader": f"{self.reader:.0%} busy, in order for the workers" if self.reader else "",
            "bottleneck": self.verdict.bottleneck,
            "to do": self.verdict.advice,
        }
        lines.append("")
        for label, text in summary.items():
            lines += wrap(f"{label:<12}{text}", width, subsequent_indent=" " * 12) if text else []
        return "\n".join(lines) + "\n"


def _judge(report: ProfileReport) -> tuple[str, str]:
    if report.consuming >= _MOSTLY or not report.stages:
        bottleneck = f"the loop that uses the datapoints: {report.consuming:.0%} of the time"
        return bottleneck, "make the training step faster; data are ready in time"
    count, busiest = len(report.workers), max(report.workers, default=0.0)
    where: Where = "loop" if report.waiting < _MUCH else "workers"
    if where == "workers" and report.reader >= max(_MOSTLY, busiest):
        where = "reader"
    stage = max(report.stages, key=lambda s: (s.where == where, s.seconds))
    cost = f"{stage.name}: {1e6 * stage.seconds_each:,.1f} µs per datapoint"
    waits = stage.on_cpu < _ON_CPU
    if where == "reader":
        return f"reading in order by one thread for all workers: {cost}", _IN_ORDER
    if where == "workers":
        if report.threads and count > 1 and _MOSTLY <= sum(report.workers) < 1 + _MUCH:
            bottleneck = f"Python's global lock: {count} threads do the work of one, mostly {cost}"
            return bottleneck, 'use backend="process", or functions that release the lock (NumPy)'
        if busiest < _MOSTLY:
            waiting = f"the loop waits {report.waiting:.0%}, workers are {busiest:.0%} busy"
            advice = "send less data between processes (uint8, cropped earlier), or read faster"
            return f"transfer between processes: {waiting}", advice
        busy = sum(share >= _MOSTLY for share in report.workers)
        if busy < count and not waits:
            bottleneck = f"uneven work: only {busy} of {count} workers have enough to do"
            return bottleneck, "increase num_prefetch, or use smaller batches"
        bottleneck = f"too few workers: {busy} of {count} are always busy, mostly with {cost}"
        if waits or count < usable_cpus():
            more = ", or even more, because they wait" if waits else ""
            return bottleneck, f"use more workers, up to {usable_cpus()} (the number of CPUs){more}"
        return bottleneck, "make the stage cheaper (smaller images, caching), or add CPUs"
    cost += f", {stage.share:.0%} of the work"
    if report.workers:
        return f"{cost}, in the loop", "move it before PrefetchData, so that workers do it"
    if waits:
        bottleneck = cost.replace(stage.name, f"{stage.name} waits (for a disk, a network)", 1)
        return bottleneck, _SIDE_BY_SIDE if stage.divisible else _IN_ORDER
    if any(s.calls and s.seconds_each < _CALL_S and s.share > _MUCH for s in report.stages):
        bottleneck = f"the cost of a call per datapoint, not the work: {cost}"
        return bottleneck, "use MapData(..., batched=True), or a map after BatchData"
    if report.seconds / report.datapoints < _TRANSFER_S:
        return cost, "keep it as it is; workers would cost more than they save"
    return cost, f"let workers do it: PrefetchData(ds, num_proc={usable_cpus()}) as the last stage"


def profile(
    ds: DataFlow,
    seconds: float = 5.0,
    *,
    consume: Callable[[Datapoint], Any] | None = None,
    seed: int = 0,
) -> ProfileReport:
    """Read a flow for some seconds, and measure the time of every stage.

    A copy of the flow is read, so its caches, workers and epoch do not change. Terminals show
    progress.

    ```
    print(profile(ds, seconds=5))
    ```

    Args:
        ds: Any flow, with or without workers.
        seconds: Time to read after the first datapoint, in seconds.
        consume: Function to call with every datapoint, such as a training step. Without it, the
            flow is read as fast as possible.
        seed: Random seed of the flow.

    Returns:
        Report with the bottleneck and advice, which `print` shows as a table.

    Raises:
        ConfigError: `seconds` or `seed` is invalid.
        DataFlowError: A pass has no datapoints.
    """
    if not 0 < seconds < math.inf:
        raise ConfigError(f"seconds must be positive and finite, got {repr_of(seconds)}.")
    count, reading, consuming = 0, 0.0, 0.0
    with progress("profile", seconds) as tick, TemporaryDirectory() as directory:
        flow, stages, timers = probed(ds, directory)
        with closing(endless(flow, seed=seed)) as datapoints:
            asked = clock()
            datapoint = next(datapoints)
            first_s = clock() - asked
            before = timers.read()
            while reading + consuming < seconds:
                got = clock()
                if consume is not None:
                    consume(datapoint)
                asked = clock()
                datapoint = next(datapoints)
                consuming += asked - got
                reading += clock() - asked
                count += 1
                tick(reading + consuming)
        tables = {name: table - before.get(name, 0.0) for name, table in timers.read().items()}
    total = reading + consuming
    works: dict[tuple[int, Where], NDArray[np.float64]] = {}
    busy: dict[Where, list[float]] = {"loop": [], "reader": [], "workers": []}
    waited, here = 0.0, name_of_thread()
    for name, table in tables.items():
        where = "loop" if name == here else "reader" if name.endswith(_READER) else "workers"
        share = min(1.0, float(table[:, SECONDS].sum()) / total)
        busy[where] += [share] if share >= _LEAST_BUSY else []
        for index, numbers in enumerate(table):
            if isinstance(stages[index], ParallelStage):
                waited += float(numbers[SECONDS])
            elif numbers[SECONDS]:
                works.setdefault((index, where), np.zeros(FIELDS))[:] += numbers
    worked = sum(float(numbers[SECONDS]) for numbers in works.values())
    return ProfileReport(
        pipeline=str(ds),
        datapoints=count,
        seconds=total,
        first_s=first_s,
        stages=[_stage(stages[i], where, works[i, where], worked) for i, where in sorted(works)],
        consuming=consuming / total,
        waiting=waited / total,
        workers=sorted(busy["workers"], reverse=True),
        reader=max(busy["reader"], default=0.0),
        threads=all(name.startswith(f"{os.getpid()}-") for name in tables),
    )


def _stage(flow: DataFlow, where: Where, numbers: NDArray[Any], worked: float) -> StageProfile:
    datapoints, seconds, cpu = numbers.tolist()
    is_map = isinstance(flow, MapData)
    return StageProfile(
        name=name_of_stage(flow),
        where=where,
        datapoints=round(datapoints),
        seconds=seconds,
        share=seconds / worked,
        on_cpu=min(1.0, cpu / seconds),
        calls=is_map and not flow.batched and not is_batched(flow),
        divisible=is_map or flow.compile_in(StageContext(0)) is not None,
    )
