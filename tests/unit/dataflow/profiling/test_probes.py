"""Pipelines that measure themselves give what they would have given."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

from towerpack.dataflow import (
    BatchByLength,
    BatchData,
    BatchDataByShape,
    CacheData,
    ConcatData,
    DataFlow,
    DataFromArrays,
    DataFromGenerator,
    FilterData,
    FixedSizeData,
    JoinData,
    LocallyShuffleData,
    MapData,
    MixData,
    PrefetchData,
    PrintData,
    ProxyDataFlow,
    RandomMixData,
    RepeatedData,
    RepeatedDataPoint,
    RNGDataFlow,
    ShardData,
    ShardRows,
    ShuffleData,
    TestDataSpeed,
)
from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow._ready import ItemsNode
from towerpack.dataflow.profiling import _calibrate, _lanes
from towerpack.dataflow.profiling._calibrate import Cost, cost_of_probes
from towerpack.dataflow.profiling._lanes import (
    CALLS,
    CALLS_BELOW,
    FIELDS,
    ITEMS,
    WALL,
    Lanes,
    name_of_lane,
)
from towerpack.dataflow.profiling._probes import probed
from towerpack.dataflow.testing import same_datapoints


def arrays(n: int = 20) -> DataFlow:
    return DataFromArrays(np.arange(n), np.arange(n) * 0.5)


def generated(n: int = 20) -> DataFlow:
    return DataFromGenerator(lambda: ((i, np.full(i % 3, i)) for i in range(n)))


class Indexed(DataFlow):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, i: int) -> Any:
        return i, np.zeros(3)


class Noise(RNGDataFlow):
    def __iter__(self) -> Iterator[Any]:
        for i in range(20):
            yield i, self.rng.random()


class EveryOther(ProxyDataFlow):
    def __iter__(self) -> Iterator[Any]:
        for i, dp in enumerate(self.ds):
            if i % 2:
                yield dp

    def __len__(self) -> int:
        return len(self.ds) // 2


def noisy(dp: Any, rng: Any) -> Any:
    return (*dp, rng.random())


FLOWS: dict[str, Callable[[], DataFlow]] = {
    "arrays": lambda: BatchData(MapData(ShuffleData(arrays()), noisy, rng=True), 3),
    "vectorised": lambda: BatchData(MapData(arrays(), lambda dp: dp, batched=True), 3),
    "stream": lambda: LocallyShuffleData(MapData(generated(), noisy, rng=True), 6, 2),
    "user's": lambda: BatchData(EveryOther(Noise()), 2),
    "user's, indexable": lambda: RepeatedData(ShuffleData(Indexed()), 2),
    "cache": lambda: RepeatedData(CacheData(EveryOther(arrays()), shuffle=True), 2),
    "many": lambda: ConcatData([JoinData([arrays(), Indexed()]), JoinData([arrays()] * 2)]),
    "mix": lambda: MixData([arrays(), Indexed()], [2, 1], stop="all"),
    "mix for ever": lambda: FixedSizeData(MixData([arrays(3), Indexed()], stop="repeat"), 30),
    "random mix": lambda: RandomMixData([arrays(), EveryOther(arrays())]),
    "groups": lambda: BatchDataByShape(generated(), 3, 1),
    "lengths": lambda: BatchByLength(generated(), 3, [1], length=1),
    "filter": lambda: FilterData(arrays(), lambda dp, rng: rng.random() < 0.5, rng=True),
    "points": lambda: ShardData(RepeatedDataPoint(Indexed(), 3), 2, 1),
    "rows": lambda: ShardRows(BatchData(arrays(), 4), 2, 1),
    "transparent": lambda: TestDataSpeed(PrintData(arrays(), 0)),
}


@pytest.mark.parametrize("name", FLOWS)
def test_the_same_datapoints_states_and_names(name: str, tmp_path: Path) -> None:
    ds = FLOWS[name]()
    flow, stages, lanes = probed(ds, str(tmp_path))
    assert str(flow) == str(ds) and stages[-1] is ds
    found = flow.iterate(seed=3)
    expected = ds.iterate(seed=3)
    count = 0
    for one, other in zip(found, expected, strict=True):
        assert same_datapoints(one, other)
        count += 1
        if count == 5:
            assert found.state() == expected.state()
    (table,) = lanes.read().values()
    assert table[-1, ITEMS] >= count or name == "transparent"
    # A state of one continues the other.
    state = FLOWS[name]().iterate(seed=3).state()
    assert same_datapoints(next(flow.iterate(state=state)), next(FLOWS[name]().iterate(seed=3)))


def test_the_original_is_left_alone(tmp_path: Path) -> None:
    ds = CacheData(MapData(arrays(), lambda dp: dp))
    before = {id(ds): type(ds), id(ds.ds): type(ds.ds)}
    flow = probed(ds, str(tmp_path)).flow
    list(flow.iterate(seed=0))
    assert before == {id(ds): CacheData, id(ds.ds): MapData}
    assert flow is not ds and type(flow) is CacheData and "open" not in vars(ds)
    read: list[int] = []
    inner = MapData(arrays(), lambda dp: read.append(1) or dp)
    cached = CacheData(inner)
    list(probed(cached, str(tmp_path)).flow.iterate(seed=0))
    assert len(read) == 20
    list(cached.iterate(seed=0))
    assert len(read) == 40


def test_datapoints_are_counted_and_sized_for_each_stage(tmp_path: Path) -> None:
    ds = BatchData(MapData(ShuffleData(arrays(64)), lambda dp: (dp[0],)), 8)
    flow, stages, lanes = probed(ds, str(tmp_path))
    list(flow.iterate(seed=0))
    (table,) = lanes.read().values()
    assert [type(stage) for stage in stages] == [DataFromArrays, ShuffleData, MapData, BatchData]
    assert table[:, ITEMS].tolist() == [64, 64, 64, 8]
    assert table[:, CALLS].tolist() == [8, 8, 8, 8]
    assert table[:, CALLS_BELOW].tolist() == [0, 8, 8, 8]
    assert (table[:, 7] / table[:, 6]).tolist() == [16, 16, 8, 64]


def test_a_flow_that_occurs_twice_is_one_stage(tmp_path: Path) -> None:
    twice = arrays()
    assert len(probed(JoinData([twice, twice]), str(tmp_path)).stages) == 2


def test_errors_pass_and_the_lane_stays_in_order(tmp_path: Path) -> None:
    def fail(dp: Datapoint) -> Datapoint:
        if dp[0] == 3:
            raise ValueError("bad")
        return dp

    for source in (arrays(5), generated(5)):
        flow, _, lanes = probed(BatchData(MapData(source, fail), 1), str(tmp_path))
        iterator = flow.iterate(seed=0)
        found: list[Any] = []
        while len(found) < 6:
            try:
                found.append(int(next(iterator)[0][0]))
            except RuntimeError as error:
                found.append(str(error)[:40])
        assert found[:3] == [0, 1, 2] and "raised ValueError" in found[3]
        lane = lanes.mine()
        assert lane._stack == []  # pyright: ignore[reportPrivateUsage]


def test_threads_and_processes_have_lanes_of_their_own(tmp_path: Path) -> None:
    flow = probed(MapData(Indexed(), lambda dp: dp), str(tmp_path))
    plan = flow.flow.plan(seed=0)
    plan.get(0)
    thread = threading.Thread(target=lambda: plan.read([1, 2]))
    thread.start()
    thread.join()
    job = cloudpickle.dumps(plan.root)
    program = "import pickle, sys; pickle.loads(sys.stdin.buffer.read()).read(0, range(5, 12))"
    subprocess.run([sys.executable, "-c", program], input=job, check=True, timeout=60)
    tables = flow.lanes.read()
    assert sorted(table[1, ITEMS] for table in tables.values()) == [1, 2, 7]
    assert tables[name_of_lane()][1, ITEMS] == 1
    (tmp_path / "other").mkdir()
    plain = probed(BatchData(arrays(), 2), str(tmp_path / "other")).flow.plan(seed=0).root
    assert pickle.loads(pickle.dumps(plain)).get(0, 3)[0].tolist() == [6, 7]
    (tmp_path / "other" / name_of_lane()).unlink()
    (tmp_path / "other").rmdir()
    again = cloudpickle.loads(job)
    assert again.get(0, 3)[0] == 3
    # One that is sent its job again goes on counting.
    table = flow.lanes.read()[name_of_lane()]
    assert table.shape == (2, FIELDS) and table[1, ITEMS] == 2


@pytest.mark.parametrize("backend", ["thread", "process"])
def test_workers_that_make_batches_of_what_is_read_in_order(backend: Any, tmp_path: Path) -> None:
    ds = BatchData(MapData(generated(), lambda dp: (dp[0],)), 4)
    flow, stages, lanes = probed(PrefetchData(ds, num_proc=1, backend=backend), str(tmp_path))
    assert len(list(flow.iterate(seed=0))) == 5
    assert [type(stage) for stage in stages[1:3]] == [MapData, BatchData]
    tables = lanes.read()
    assert sum(table[1:3, ITEMS] for table in tables.values()).tolist() == [20, 5]
    assert tables[name_of_lane()][1:3, ITEMS].tolist() == [0, 0], "not in the loop"


def test_a_lane_that_a_worker_is_about_to_make(tmp_path: Path) -> None:
    flow = probed(arrays(), str(tmp_path))
    list(flow.flow)
    (tmp_path / "1-2-other").touch()
    assert list(flow.lanes.read()) == [name_of_lane()]


def test_a_worker_that_goes_on_after_the_end(tmp_path: Path) -> None:
    directory = tmp_path / "gone"
    directory.mkdir()
    flow, _, lanes = probed(arrays(), str(directory))
    directory.rmdir()
    assert len(list(flow.iterate(seed=0))) == 20
    lanes.mine()


class TestLane:
    def test_time_is_charged_to_the_innermost(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now, blocked = [0.0], [0]
        monkeypatch.setattr(time, "perf_counter", lambda: now[0])
        monkeypatch.setattr(time, "thread_time", lambda: now[0] / 2)
        monkeypatch.setattr("towerpack.dataflow.profiling._lanes.times_blocked", lambda: blocked[0])
        lanes = Lanes(str(tmp_path), 3)
        lane = lanes.mine()

        def after(seconds: float, act: Callable[[], None]) -> None:
            now[0] += seconds
            act()

        def leave() -> None:
            lane.leave(2, (np.zeros(4),), block=False)

        lane.enter(0)
        after(1, lambda: lane.enter(1))
        after(10, lambda: lane.enter(2))
        after(100, leave)
        after(1000, leave)
        after(1, lambda: lane.enter(1))
        after(10, lambda: lane.enter(1))  # calls itself
        after(10, leave)
        after(10, leave)
        after(10_000, leave)
        (table,) = lanes.read().values()
        assert table[:, WALL].tolist() == [10_002, 1040, 100]
        assert table[:, CALLS].tolist() == [1, 2, 1]
        assert table[:, ITEMS].tolist() == [2, 4, 2]
        assert table[:, CALLS_BELOW].tolist() == [2, 2, 0]
        assert table[:, 5].tolist() == [5001, 520, 50]
        assert table[:, 6].tolist() == [2, 4, 2]
        assert table[:, 7].tolist() == [32, 64, 32]
        # Who never waited computed all the time, although others had the CPU for half of it.
        blocked[0] = 7
        for _ in range(4):  # of which one is sampled
            lane.enter(2)
            after(10, leave)
        (table,) = lanes.read().values()
        assert table[2, 5] == 60

    def test_sampling(self, tmp_path: Path) -> None:
        lanes = Lanes(str(tmp_path), 1)
        lane = lanes.mine()
        for _ in range(9):
            lane.enter(0)
            lane.leave(1, 5, block=False)
        (table,) = lanes.read().values()
        assert table[0, ITEMS] == 9 and table[0, 6] == 3

    def test_a_forked_process_has_its_own(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lanes = Lanes(str(tmp_path), 1)
        parent = lanes.mine()
        assert lanes.mine() is parent
        monkeypatch.setattr(os, "getpid", lambda: 1)
        assert lanes.mine() is not parent
        assert len(lanes.read()) == 2

    def test_blocks(self, tmp_path: Path) -> None:
        lanes = Lanes(str(tmp_path), 1)
        lane = lanes.mine()
        lane.enter(0)
        lane.leave(100, [(np.zeros(2),)] * 100, block=True)
        (table,) = lanes.read().values()
        assert table[0, 7] == 1600


def test_what_probes_cost_is_taken_off() -> None:
    table = np.zeros((3, FIELDS))
    table[:, WALL] = 1.0, 0.05, 7.0
    table[:, CALLS] = 2, 1, 0
    table[:, CALLS_BELOW] = 1, 0, 0
    assert Cost(own=0.1, above=0.2).taken_off(table).tolist() == [0.6, 0.0, 7.0]
    cost = cost_of_probes()
    assert 0 <= cost.own < 1e-3 and 0 <= cost.above < 1e-3


def test_a_pause_of_the_machine_is_no_cost_of_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock:
        """Each look at it takes a microsecond, and one of them ten seconds."""

        def __init__(self, pause: int) -> None:
            self.pause = pause
            self.looks = 0

        def perf_counter(self) -> float:
            self.looks += 1
            return 1e-6 * self.looks + (10 if self.looks >= self.pause else 0)

        thread_time = perf_counter

    def cost(clock: Clock) -> Cost:
        for module in (_calibrate, _lanes):
            monkeypatch.setattr(module, "time", clock)
        return cost_of_probes()

    everything = cost(undisturbed := Clock(10**9))
    assert 1e-6 < everything.own + everything.above < 1e-5
    for pause in (2, *range(4, undisturbed.looks, undisturbed.looks // 7)):
        found = cost(Clock(pause))
        assert (found.own, found.above) == pytest.approx((everything.own, everything.above))


def test_nodes_keep_their_class(tmp_path: Path) -> None:
    node = probed(Indexed(), str(tmp_path)).flow.plan(seed=0).root
    assert type(node) is ItemsNode  # timed in the source itself, which is the user's
    node = probed(MapData(arrays(), lambda dp: dp), str(tmp_path)).flow.plan(seed=0).root
    assert type(node).__name__ == "MapNode" and type(node).__mro__[1].__name__ == "MapNode"
