"""Measure a pipeline stage by stage: numbers, what limits it, and one sentence of advice."""

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
from towerpack.dataflow.arguments import given
from towerpack.dataflow.datapoints import Datapoint
from towerpack.dataflow.parallel._options import usable_cpus
from towerpack.dataflow.pipeline_names import name_of_stage
from towerpack.dataflow.profiling._probes import FIELDS, SECONDS, name_of_thread, probed
from towerpack.dataflow.stage_context import StageContext
from towerpack.dataflow.stages._batch import is_batched
from towerpack.dataflow.stages._map import MapData

Where = Literal["loop", "reader", "workers"]

_LEAST_BUSY = 0.01
_READER = "towerpack-data-reader"  # the thread of `parallel` that reads in order
_MOSTLY = 0.6
_MUCH = 0.3
_ON_CPU = 0.4
_CALL_S = 20e-6  # of Python for each single datapoint: a call, a copy and an index take 1 to 3 µs
_HAND_OVER_S = 150e-6  # what a datapoint costs that comes from another process

_IN_ORDER = "workers do not help what is read in order: index the source, or move work into a map"
_SIDE_BY_SIDE = "workers, which wait side by side: PrefetchData(ds, num_proc=8); or longer reads"


@dataclass(frozen=True)
class StageProfile:
    """The work of one stage.

    Attributes:
        name: As messages name it.
        where: In the thread of the loop, in one that reads in order for workers, or in workers.
        datapoints: How many it gave.
        seconds: How long it was at work itself, without the stages below; of all workers together.
        share: Of the work of all stages.
        on_cpu: Share of `seconds` in which it computed; the rest it waited, for a disk, say.
        calls: Whether it calls a function for every single datapoint.
        divisible: Whether several workers can do its work.
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
        """Seconds of work per datapoint."""
        return self.seconds / max(1, self.datapoints)


@dataclass(frozen=True)
class Verdict:
    """What limits a pipeline (`bottleneck`), and what to do about it (`advice`)."""

    bottleneck: str
    advice: str


@dataclass(frozen=True)
class ProfileReport:
    """Where the time goes. `print` shows it as a table.

    Attributes:
        pipeline: What was measured.
        datapoints: How many were read after the first.
        seconds: How long that took.
        first_s: Seconds until the first datapoint.
        stages: Sources first.
        consuming: Share of the time in which the loop was busy with datapoints that it had.
        waiting: Share of the time in which it waited for workers; the rest went into stages that
            run in the loop itself.
        workers: For each worker the share of the time in which it was busy with stages.
        reader: The same for the thread that reads in order for them; 0 if there is none.
        threads: Whether the workers are threads of this process.
        verdict: What limits it.
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
        """The rate."""
        return self.datapoints / self.seconds

    def __str__(self) -> str:
        return self.text()

    def text(self, width: int = 100) -> str:
        """The table and what follows from it, in lines of at most `width` columns."""
        room = min(max([5, *(len(one.name) for one in self.stages)]), width - 48)
        lines = [f"{'stage':<{room}}{'datapoints':>13}{'µs each':>11}  share  waits  where"]
        lines.append("─" * (room + 48))
        for one in self.stages:
            name = one.name if len(one.name) <= room else f"{one.name[: room - 1]}…"
            waits = f"{1 - one.on_cpu:.0%}" if one.on_cpu < 0.75 else ""
            each = 1e6 * one.seconds_each
            numbers = f"{one.datapoints:>13,}{each:>11,.1f}{one.share:>7.0%}{waits:>7}"
            lines.append(f"{name:<{room}}{numbers}  {one.where}")
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


def _judge(it: ProfileReport) -> tuple[str, str]:
    if it.consuming >= _MOSTLY or not it.stages:
        found = f"the loop that uses the datapoints: {it.consuming:.0%} of the time"
        return found, "nothing here, data are ready before they are asked for: a faster step"
    count, busiest = len(it.workers), max(it.workers, default=0.0)
    where: Where = "loop" if it.waiting < _MUCH else "workers"
    if where == "workers" and it.reader >= max(_MOSTLY, busiest):
        where = "reader"
    stage = max(it.stages, key=lambda one: (one.where == where, one.seconds))
    told = f"{stage.name}: {1e6 * stage.seconds_each:,.1f} µs per datapoint"
    waits = stage.on_cpu < _ON_CPU
    if where == "reader":
        return f"reading in order, which one thread does for all workers: {told}", _IN_ORDER
    if where == "workers":
        if it.threads and count > 1 and _MOSTLY <= sum(it.workers) < 1 + _MUCH:
            found = f"the interpreter's lock: {count} threads do the work of one, mostly {told}"
            return found, 'backend="process", or functions that let go of the lock (NumPy, OpenCV)'
        if busiest < _MOSTLY:
            found = f"handing over: the loop waits {it.waiting:.0%}, workers work {busiest:.0%}"
            return found, "send less between processes (uint8, cropped before), or read faster"
        busy = sum(share >= _MOSTLY for share in it.workers)
        if busy < count and not waits:
            found = f"one worker: of {count} only {busy} has enough to do"
            return found, "read further ahead: a larger num_prefetch, or smaller batches"
        found = f"too few workers: {busy} of {count} are always busy, mostly with {told}"
        if waits or count < usable_cpus():
            more = ", also more than that: they wait" if waits else ""
            return found, f"more workers: there are {usable_cpus()} CPUs{more}"
        return found, "a cheaper stage (smaller pictures, cached, vectorised), or more CPUs"
    told += f", {stage.share:.0%} of the work"
    if it.workers:
        return f"{told}, in the loop", "move it below PrefetchData, so that workers do it"
    if waits:
        found = told.replace(stage.name, f"{stage.name} waits (for a disk, a network)", 1)
        return found, _SIDE_BY_SIDE if stage.divisible else _IN_ORDER
    if any(one.calls and one.seconds_each < _CALL_S and one.share > _MUCH for one in it.stages):
        found = f"the cost of a call per datapoint, not the work: {told}"
        return found, "MapData(..., batched=True) from the source on, or a map after BatchData"
    if it.seconds / it.datapoints < _HAND_OVER_S:
        return told, "little: handing over from workers would cost more than it saves"
    return told, f"let workers do it: PrefetchData(ds, num_proc={usable_cpus()}) as the last stage"


def profile(
    ds: DataFlow,
    seconds: float = 5.0,
    *,
    consume: Callable[[Datapoint], Any] | None = None,
    seed: int = 0,
) -> ProfileReport:
    """Read a flow for some seconds, with a clock on every stage, and find out which takes them.

    A copy is read, so that the flow's own caches, workers and count of passes are left alone.
    Progress is shown on a terminal.

    Args:
        ds: Any flow, with or without workers.
        seconds: How long to read, besides what it takes until the first datapoint comes.
        consume: Called with every datapoint, as the training step would be. Without it, the flow is
            read as fast as it goes.
        seed: For its randomness.

    Returns:
        A report, which `print` shows as a table with the bottleneck and what to do.

    Raises:
        ConfigError: `seconds` or `seed` makes no sense.
        DataFlowError: A pass has no datapoints.
    """
    if not 0 < seconds < math.inf:
        raise ConfigError("seconds is no length of time.", got=given(seconds), expected="above 0")
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
        stages=[_stage(stages[at], where, works[at, where], worked) for at, where in sorted(works)],
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
