"""Pipelines that measure themselves give what they would have given."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

from every_flow import STAGES, in_order, planned
from small_flows import Indexed, Noise
from towerpack.dataflow import (
    BatchData,
    CacheData,
    DataFlow,
    DataFromArrays,
    DataFromGenerator,
    JoinData,
    MapData,
    PrefetchData,
    ProxyDataFlow,
    RepeatedData,
    ShuffleData,
)
from towerpack.dataflow.profiling import _probes
from towerpack.dataflow.profiling._probes import (
    CPU_SECONDS,
    DATAPOINTS,
    SECONDS,
    Timers,
    name_of_thread,
    probed,
)
from towerpack.dataflow.testing import same_datapoints


def arrays(n: int = 20) -> DataFlow:
    return DataFromArrays(np.arange(n), np.arange(n) * 0.5)


def generated(n: int = 20) -> DataFlow:
    return DataFromGenerator(lambda: ((i, np.full(i % 3, i)) for i in range(n)))


FLOWS: dict[str, Callable[[], DataFlow]] = {
    f"{name}, {source.__name__}": partial(case.make, source)
    for name, case in STAGES.items()
    for source in (planned, in_order)
    if case.make is case.plain and not (case.needs_plan and source is in_order)
    if "DiskCache" not in name  # each has a folder of its own
}
FLOWS["indexable"] = lambda: RepeatedData(ShuffleData(Indexed(20)), 2)
FLOWS["user's"] = lambda: BatchData(ProxyDataFlow(Noise(20)), 2)
FLOWS["threads"] = lambda: PrefetchData(BatchData(generated(), 4, pad=0), None, 2, backend="thread")


@pytest.mark.parametrize("name", FLOWS)
def test_the_same_datapoints_states_and_names(name: str, tmp_path: Path) -> None:
    ds = FLOWS[name]()
    flow, stages, timers = probed(ds, str(tmp_path))
    assert str(flow) == str(ds) and stages[-1] is ds
    found, expected = flow.iterate(seed=3), ds.iterate(seed=3)
    count = 0
    for one, other in islice(zip(found, expected, strict=True), 30):
        assert same_datapoints(one, other)
        count += 1
        if count == 5:
            assert found.state() == expected.state()
    counted = sum(table[-1, DATAPOINTS] for table in timers.read().values())
    assert counted >= count or stages[-1].transparent  # type: ignore[attr-defined]
    # A state of one continues the other.
    state = FLOWS[name]().iterate(seed=3).state()
    assert same_datapoints(next(flow.iterate(state=state)), next(FLOWS[name]().iterate(seed=3)))


def test_the_original_and_its_cache_are_left_alone(tmp_path: Path) -> None:
    read: list[int] = []
    ds = CacheData(MapData(arrays(), lambda dp: read.append(1) or dp))
    for flow in (probed(ds, str(tmp_path))[0], ds):
        list(flow.iterate(seed=0))
    assert len(read) == 40 and type(ds.ds) is MapData and "open" not in vars(ds)


def test_datapoints_are_counted_for_each_stage(tmp_path: Path) -> None:
    twice = ShuffleData(arrays(64))
    ds = BatchData(MapData(JoinData([twice, twice]), lambda dp: (dp[0],)), 8)
    flow, stages, timers = probed(ds, str(tmp_path))
    list(flow.iterate(seed=0))
    (table,) = timers.read().values()
    # The shuffle is one stage, though it occurs twice.
    kinds = [DataFromArrays, ShuffleData, JoinData, MapData, BatchData]
    assert [type(stage) for stage in stages] == kinds
    assert table[:, DATAPOINTS].tolist() == [128, 128, 64, 64, 8]


@pytest.mark.parametrize("source", [arrays, generated])
def test_errors_pass_and_time_is_still_charged_rightly(
    source: Callable[[int], DataFlow], tmp_path: Path
) -> None:
    def fail(dp: Any) -> Any:
        if dp[0] == 3:
            raise ValueError("bad")
        return dp

    flow, _, timers = probed(BatchData(MapData(source(5), fail), 1), str(tmp_path))
    iterator = flow.iterate(seed=0)
    assert [int(next(iterator)[0][0]) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(RuntimeError, match="raised ValueError"):
        next(iterator)
    (before,) = timers.read().values()
    time.sleep(0.05)
    timers.enter(0)
    (after,) = timers.read().values()
    assert (after == before).all(), "outside of all stages"


def test_threads_and_processes_have_tables_of_their_own(tmp_path: Path) -> None:
    flow, _, timers = probed(MapData(arrays(), lambda dp: dp), str(tmp_path))
    plan = flow.plan(seed=0)
    plan.get(0)
    thread = threading.Thread(target=lambda: plan.read([1, 2]))
    thread.start()
    thread.join()
    job = cloudpickle.dumps(plan.root)
    program = "import pickle, sys; pickle.loads(sys.stdin.buffer.read()).read(0, range(5, 12))"
    subprocess.run([sys.executable, "-c", program], input=job, check=True, timeout=60)
    (tmp_path / "1-2-being%20made").touch()
    tables = timers.read()
    assert sorted(table[1, DATAPOINTS] for table in tables.values()) == [1, 2, 7]
    assert tables[name_of_thread()][1, DATAPOINTS] == 1
    # One that is sent its job again goes on counting; after the end, nobody reads what it counts.
    cloudpickle.loads(job).get(0, 3)
    assert timers.read()[name_of_thread()][1, DATAPOINTS] == 2
    for path in tmp_path.iterdir():
        path.unlink()
    tmp_path.rmdir()
    assert pickle.loads(job).get(0, 3)[0] == 3


def test_a_fork_has_a_table_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timers = Timers(str(tmp_path), 1)
    timers.enter(0)
    timers.leave(1)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    timers.enter(0)
    timers.leave(5)
    assert sorted(table[0, DATAPOINTS] for table in timers.read().values()) == [1, 5]


@pytest.mark.parametrize("backend", ["thread", "process"])
def test_workers_that_make_batches_of_what_is_read_in_order(backend: Any, tmp_path: Path) -> None:
    ds = BatchData(MapData(generated(), lambda dp: (dp[0],)), 4)
    flow, _, timers = probed(PrefetchData(ds, num_proc=1, backend=backend), str(tmp_path))
    list(flow.iterate(seed=0))
    tables = timers.read()
    assert sum(table[1:3, DATAPOINTS] for table in tables.values()).tolist() == [20, 5]
    assert tables[name_of_thread()][1:3, DATAPOINTS].tolist() == [0, 0], "not in the loop"


def test_time_is_charged_to_the_innermost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, waits = 0.0, 1
    monkeypatch.setattr(_probes, "perf_counter", lambda: now)
    monkeypatch.setattr(_probes, "thread_time", lambda: now / 2)
    monkeypatch.setattr(_probes, "_count_waits", lambda: waits)
    timers = Timers(str(tmp_path), 3)
    # Seconds that pass, and which stage begins then; `None`: the innermost ends.
    for seconds, stage in (
        *((0, 0), (1, 1), (10, 2), (100, None), (1000, None)),
        *((1, 1), (10, 1), (10, None), (10, None), (10_000, None)),  # 1 calls itself
    ):
        now += seconds
        waits += 1
        timers.leave(2) if stage is None else timers.enter(stage)
    (table,) = timers.read().values()
    assert table[:, SECONDS].tolist() == [10_002, 1040, 100]
    assert table[:, CPU_SECONDS].tolist() == [5001, 520, 50]
    assert table[:, DATAPOINTS].tolist() == [2, 4, 2]
    timers.enter(2)
    now += 10  # of which others had the CPU for half, and it never waited: it computed
    timers.leave(1)
    (table,) = timers.read().values()
    assert table[2, CPU_SECONDS] == 60
