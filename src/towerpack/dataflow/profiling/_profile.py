"""Measure a pipeline stage by stage."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from contextlib import closing
from numbers import Real
from tempfile import TemporaryDirectory
from time import perf_counter as clock
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError
from towerpack.dataflow._arguments import given
from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow._flow import DataFlow, ParallelStage, Place, compile_flow, name_of_stage
from towerpack.dataflow._progress import endless, progress
from towerpack.dataflow.profiling._probes import FIELDS, SECONDS, name_of_thread, probed
from towerpack.dataflow.profiling._report import ProfileReport, StageProfile, Where
from towerpack.dataflow.stages._batch import is_batched
from towerpack.dataflow.stages._map import MapData

_LEAST_BUSY = 0.01
_READER = "towerpack-data-reader"  # the thread of `parallel` that reads in order


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
        ConfigError: `ds` is no flow, or an argument makes no sense.
        DataFlowError: A pass has no datapoints.
    """
    if not isinstance(cast("object", ds), DataFlow):
        fix = "wrap it in DataFromArrays, DataFromList, DataFromIterable or DataFromGenerator"
        raise ConfigError("profile measures a DataFlow.", got=given(ds), fix=fix)
    if not isinstance(seconds, Real) or not 0 < float(seconds) < math.inf:
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
        divisible=is_map or compile_flow(flow, Place(0)) is not None,
    )
