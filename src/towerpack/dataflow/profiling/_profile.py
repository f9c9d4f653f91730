"""Measure a pipeline stage by stage."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from numbers import Real
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError
from towerpack.dataflow._arguments import given
from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow._flow import DataFlow, ParallelStage, name_of_stage
from towerpack.dataflow._passes import endless
from towerpack.dataflow._progress import Tick, progress
from towerpack.dataflow.profiling._advice import count_cpus, judge
from towerpack.dataflow.profiling._calibrate import cost_of_probes
from towerpack.dataflow.profiling._lanes import (
    CALLS,
    FIELDS,
    ITEMS,
    SAMPLED_BYTES,
    SAMPLED_CPU,
    SAMPLED_ITEMS,
    SAMPLED_WALL,
    WALL,
    Tables,
    name_of_lane,
)
from towerpack.dataflow.profiling._probes import cloned, probed
from towerpack.dataflow.profiling._report import ProfileReport, StageProfile, Where
from towerpack.dataflow.stages._speed import bytes_of

Use = Callable[[Datapoint], Any]

_BARE_SHARE = 0.4
_SIZED_EVERY = 16
_LEAST_BUSY = 0.01
_READER = "towerpack-data-reader"  # the thread of `parallel` that reads in order


def profile(
    ds: DataFlow,
    seconds: float = 5.0,
    *,
    consume: Use | None = None,
    seed: int = 0,
) -> ProfileReport:
    """Read a flow for some seconds and find out which stage takes them.

    The first part of the time it is read as it is, which tells how fast it is; then with a clock
    on every stage, which tells why. Copies are read, so that the flow's own caches, workers and
    count of passes are left alone. Progress is shown on a terminal.

    Args:
        ds: Any flow, with or without workers.
        seconds: How long to read, besides what it takes until the first datapoint comes.
        consume: Called with every datapoint, as the training step would be. Without it, the flow is
            read as fast as it goes.
        seed: For its randomness.

    Returns:
        A report, which `print` shows as a table with the bottleneck and what to do.

    Raises:
        ConfigError: `ds` is no flow, or an argument makes no sense.
        DataFlowError: A pass has no datapoints.
    """
    _check(ds, seconds, consume)
    use = consume or _nothing
    with progress("profile", seconds) as tick, TemporaryDirectory() as directory:
        bare = _read(cloned(ds), seed, use, _BARE_SHARE * seconds, tick)
        flow, stages, lanes = probed(ds, directory)
        before: list[Tables] = []
        timed = _read(
            flow,
            seed,
            use,
            (1 - _BARE_SHARE) * seconds,
            lambda done: tick(bare.seconds + done),
            begin=lambda: before.append(lanes.read()),
        )
        tables = _difference(before[0], lanes.read())
    return _report(ds, bare, timed, stages, tables, name_of_lane())


def _check(ds: object, seconds: object, consume: object) -> None:
    if not isinstance(ds, DataFlow):
        raise ConfigError(
            "profile measures a DataFlow.",
            got=f"a {type(ds).__name__}",
            fix="wrap it in DataFromArrays, DataFromList, DataFromIterable or DataFromGenerator",
        )
    if not isinstance(seconds, Real):
        raise ConfigError("seconds is no number.", got=given(seconds), expected="for example 5.0")
    if not 0 < float(seconds) < math.inf:
        raise ConfigError(f"A profile of {seconds} seconds sees nothing.", expected="more than 0")
    if consume is not None and not callable(consume):
        raise ConfigError("consume is no function.", got=given(consume), expected="step(datapoint)")


@dataclass
class Run:
    """Some seconds of reading.

    Attributes:
        first_s: Seconds until the first datapoint, which is not counted below.
        datapoints: How many were read.
        reading: Seconds that took.
        consuming: Seconds in which they were used.
        sized: How many were looked at for their size.
        sized_bytes: Bytes in those.
    """

    first_s: float = 0.0
    datapoints: int = 0
    reading: float = 0.0
    consuming: float = 0.0
    sized: int = 0
    sized_bytes: int = 0

    @property
    def seconds(self) -> float:
        """How long it took in all."""
        return self.reading + self.consuming

    @property
    def nbytes(self) -> float:
        """Bytes in all datapoints."""
        return self.sized_bytes / self.sized * self.datapoints

    def read_one(self, datapoints: Iterator[Datapoint], use: Use) -> None:
        """Read and use one more."""
        clock = time.perf_counter
        asked = clock()
        datapoint = next(datapoints)
        got = clock()
        use(datapoint)
        self.consuming += clock() - got
        self.reading += got - asked
        if self.datapoints % _SIZED_EVERY == 0:
            self.sized += 1
            self.sized_bytes += bytes_of(datapoint)
        self.datapoints += 1


def _read(
    ds: DataFlow,
    seed: int,
    use: Use,
    seconds: float,
    tick: Tick,
    begin: Callable[[], object] = lambda: None,
) -> Run:
    """Read for some seconds after the first datapoint, when `begin` is called."""
    run = Run()
    with closing(endless(ds, seed=seed)) as datapoints:
        start = time.perf_counter()
        use(next(datapoints))
        run.first_s = time.perf_counter() - start
        begin()
        while run.seconds < seconds:
            run.read_one(datapoints, use)
            tick(run.seconds)
    return run


def _difference(before: Tables, after: Tables) -> Tables:
    return {name: table - before.get(name, 0.0) for name, table in after.items()}


@dataclass
class Work:
    """The work of one stage, either in the loop or in workers; see `StageProfile`."""

    seconds: float
    numbers: NDArray[np.float64]


def _where(lane: str, here: str) -> Where:
    if lane == here:
        return "loop"
    return "reader" if lane.endswith(f"-{_READER}") else "workers"


def _works(
    flows: Sequence[DataFlow], tables: Tables, here: str
) -> tuple[dict[tuple[int, Where], Work], float]:
    """What was measured for each stage and place, and for how long workers were waited for."""
    cost = cost_of_probes()
    works: dict[tuple[int, Where], Work] = {}
    waited = 0.0
    for name, table in tables.items():
        for index, seconds in enumerate(cost.taken_off(table).tolist()):
            if isinstance(flows[index], ParallelStage):
                waited += seconds
            elif table[index, CALLS]:
                work = works.setdefault((index, _where(name, here)), Work(0.0, np.zeros(FIELDS)))
                work.seconds += seconds
                work.numbers += table[index]
    return works, waited


def _stage_profile(flow: DataFlow, where: Where, work: Work, all_seconds: float) -> StageProfile:
    numbers = work.numbers
    wall, items = numbers[SAMPLED_WALL], numbers[SAMPLED_ITEMS]
    return StageProfile(
        name=name_of_stage(flow),
        where=where,
        datapoints=int(numbers[ITEMS]),
        seconds=work.seconds,
        share=work.seconds / max(all_seconds, 1e-9),
        on_cpu=min(1.0, float(numbers[SAMPLED_CPU] / wall)) if wall else 1.0,
        nbytes=float(numbers[SAMPLED_BYTES] / items) if items else 0.0,
    )


def _report(
    ds: DataFlow, bare: Run, timed: Run, flows: Sequence[DataFlow], tables: Tables, here: str
) -> ProfileReport:
    works, waited = _works(flows, tables, here)
    all_seconds = sum(work.seconds for work in works.values())
    stages = [
        (flows[index], _stage_profile(flows[index], where, work, all_seconds))
        for (index, where), work in sorted(works.items())
    ]
    busy = [
        (_where(name, here), min(1.0, float(table[:, WALL].sum()) / timed.seconds))
        for name, table in tables.items()
    ]
    busy = [(where, share) for where, share in busy if share >= _LEAST_BUSY]
    workers = [share for where, share in busy if where == "workers"]
    reader = max((share for where, share in busy if where == "reader"), default=0.0)
    consuming = bare.consuming / bare.seconds
    waiting = waited / timed.seconds
    verdict = judge(
        stages,
        consuming=consuming,
        waiting=waiting,
        workers=workers,
        reader=reader,
        threads=all(name.split("-")[0] == here.split("-")[0] for name in tables),
        each=bare.reading / bare.datapoints,
        cpus=count_cpus(),
    )
    return ProfileReport(
        pipeline=str(ds),
        datapoints=bare.datapoints,
        seconds=bare.seconds,
        nbytes=bare.nbytes,
        first_s=bare.first_s,
        stages=[stage for _, stage in stages],
        consuming=consuming,
        waiting=waiting,
        workers=sorted(workers, reverse=True),
        reader=reader,
        verdict=verdict,
    )


def _nothing(datapoint: Datapoint) -> None:
    """Use a datapoint not at all."""
