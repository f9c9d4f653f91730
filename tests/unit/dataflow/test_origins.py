"""Origins say which source rows a datapoint was made from, with a plan and without."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from every_flow import SOURCES, STAGES, assert_same, in_order, planned, write_files
from towerpack import ConfigError
from towerpack import dataflow as df
from towerpack.dataflow._item_rng import position_rng
from towerpack.dataflow.replay import inexact_stages, open_traced, read_rows
from towerpack.dataflow.stage_context import StageContext

IDS = np.arange(50)


def rows() -> df.DataFlow:
    """Datapoint i begins with i."""
    return df.DataFromArrays(IDS, IDS * 2.0)


def some() -> df.DataFlow:
    """The same, read in order."""
    return df.FilterData(df.ShuffleData(rows()), lambda row: row[0] % 3 > 0)


def with_noise(row: Any, rng: Any) -> Any:
    return row[0], rng.random(np.shape(row[0]))


FLOWS: dict[str, df.DataFlow] = {
    "shuffled": df.BatchData(df.ShuffleData(rows()), 8),
    "mapped": df.BatchData(df.MapData(rows(), with_noise, rng=True), 8),
    "filtered": df.BatchData(some(), 8),
    "windows": df.BatchData(df.LocallyShuffleData(some(), 10, 2), 8, remainder=True),
    "mixture": df.BatchData(df.MixData([df.ShuffleData(rows()), rows()], [3, 1]), 8),
    "mixture in order": df.BatchData(df.MixData([some(), rows()], [3, 1], stop="repeat"), 8),
    "mixed batches": df.MixData([df.BatchData(rows(), 8), df.BatchData(rows(), 4)], [3, 1]),
    "random mixture": df.BatchData(df.RandomMixData([rows(), rows()]), 5),
    "buckets": df.BatchByLength(
        rows(), 8, [10, 20], length=lambda row: int(row[0]) % 30, lengths=IDS % 30, shuffle=True
    ),
    "buckets in order": df.BatchByLength(some(), 8, [10, 20], length=lambda row: int(row[0]) % 30),
    "repeated": df.BatchData(df.RepeatedDataPoint(df.ConcatData([rows(), some()]), 3), 5),
    "cached": df.BatchData(df.CacheData(df.ShuffleData(rows()), shuffle=True), 5),
    "shards": df.BatchData(df.ShardData(df.FixedSizeData(rows(), 30), 3, 1), 5),
    "rows of shards": df.ShardRows(df.BatchData(df.ShuffleData(rows()), 8), 2, 1),
    "vectorized": df.BatchData(df.MapData(some(), with_noise, rng=True, batched=True), 5),
    "generator": df.BatchData(df.DataFromGenerator(lambda: ((i,) for i in range(20))), 5),
}


@pytest.mark.parametrize("name", FLOWS)
def test_origins_are_the_rows(name: str) -> None:
    flow = df.RepeatedData(FLOWS[name], -1)
    with flow.iterate(seed=3, epoch=0) as plain, open_traced(flow, None, seed=3) as traced:
        states, batches, origins = [], [], []
        for _ in range(30):
            states.append(plain.state())
            batches.append(next(plain))
            datapoint, rows_of_it = next(traced)
            assert_same([datapoint], [batches[-1]], name)
            origins.append(rows_of_it)
    assert [[o.index for o in each] for each in origins] == [b[0].tolist() for b in batches]
    for start, ahead in ((0, 12), (7, 0), (16, 9)):
        with open_traced(flow, states[start], seed=0, ahead=ahead) as traced:
            datapoint, again = next(traced)
            assert_same([datapoint], [batches[start + ahead]], name)
            assert again == origins[start + ahead]
    totals = sum(len(rows) for _, _, rows in read_rows(flow, states[4], 20, seed=0, ahead=2))
    assert totals == sum(len(batch[0]) for batch in batches[6:26])


@pytest.mark.parametrize("source", [planned, in_order])
@pytest.mark.parametrize("name", [n for n in STAGES if "DiskCache" not in n])
def test_every_stage(name: str, source: Any) -> None:
    case = STAGES[name]
    if case.needs_plan and source is in_order:
        pytest.skip("needs a plan")
    flow = case.make(source)
    with case.plain(source).iterate(seed=1, epoch=2) as plain:
        state = plain.state()
        expected = [row for row, _ in zip(plain, range(9), strict=False)]
    node = flow.compile_in(StageContext(1, serial=True))
    with open_traced(flow, state, seed=0) as traced:
        for position, row in enumerate(expected):
            datapoint, origins = next(traced)
            assert_same([datapoint], [row], name)
            assert origins and all(0 <= origin.index < 23 for origin in origins)
            if node is not None:
                assert flow.plan(seed=1).origin(position, epoch=2) == origins


def test_names_of_rows(tmp_path: Path) -> None:
    write_files(tmp_path)
    names = {}
    for case, (_, make) in SOURCES.items():
        flow = make(tmp_path)
        with open_traced(flow, None, seed=1) as traced:
            (origin,) = next(traced).origins
            names[case] = origin.name
            assert origin.index >= 0, case
    assert Path(str(names["ImageFolder"])).is_file()
    assert Path(str(names["ImageCSV"])).is_file()
    assert "a.tfrecord, byte" in str(names["TFRecordData"])
    assert "a.parquet, row 0" in str(names["ParquetData"])
    assert names["LMDBData"] and names["TarData"]
    assert names["DataFromArrays"] is None


def test_draws_repeat_the_random_numbers() -> None:
    plan = df.MapData(rows(), with_noise, rng=True).plan(seed=4)
    (origin,) = plan.origin(17)
    (draw,) = origin.draws.values()
    assert plan.get(17)[1] == position_rng(*draw).random()
    with pytest.raises(ConfigError, match="position"):
        plan.origin(50)


def test_a_billion_rows() -> None:
    class Rows(df.DataFlow):
        def __len__(self) -> int:
            return 10**9

        def __getitem__(self, index: int) -> Any:
            return (index,)

        def name_of(self, index: int) -> str:
            return f"row {index}"

    plan = df.RepeatedData(df.BatchData(df.ShuffleData(Rows()), 128), -1).plan(seed=1)
    began = time.process_time()
    origins = plan.origin(123_456_789)
    assert time.process_time() - began < 0.1
    assert [origin.index for origin in origins] == plan.get(123_456_789)[0].tolist()
    assert origins[0].name == f"row {origins[0].index}"


def test_stages_that_may_differ_are_named() -> None:
    assert inexact_stages(df.PrefetchData(FLOWS["filtered"], 2)) == []
    unordered = df.PrefetchData(FLOWS["filtered"], 2, ordered=False)
    assert len(inexact_stages(unordered)) == 1
    assert inexact_stages(FLOWS["generator"]) == ["DataFromGenerator(<lambda>)"]
