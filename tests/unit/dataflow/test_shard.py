"""ShardData, ShardRows and RepeatedDataPoint."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
import pytest

from small_flows import generated, numbers
from towerpack._core.errors import ConfigError
from towerpack.dataflow import (
    BatchData,
    DataFlow,
    DataFromList,
    FilterData,
    LocallyShuffleData,
    MapData,
    RepeatedData,
    RepeatedDataPoint,
    SelectComponent,
    ShardData,
    ShardRows,
    ShuffleData,
)

Make = Callable[[int], DataFlow]


def values(ds: DataFlow, **options: Any) -> list[Any]:
    return [np.asarray(dp[0]).tolist() for dp in ds.iterate(seed=0, **options)]


BOTH = pytest.mark.parametrize("make", [numbers, generated])


@BOTH
class TestShard:
    @pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 11])
    def test_tails(self, make: Make, size: int) -> None:
        def parts(tail: Any) -> list[list[int]]:
            flows = [ShardData(make(size), 4, h, tail=tail) for h in range(4)]
            found = [values(ds) for ds in flows]
            assert make is generated or [len(ds) for ds in flows] == list(map(len, found))
            return found

        whole = size - size % 4
        assert parts("drop") == [list(range(h, whole, 4)) for h in range(4)]
        assert parts("uneven") == [list(range(h, size, 4)) for h in range(4)]
        padded = parts("pad")
        assert {len(part) for part in padded} == {-(-size // 4)}
        assert sorted(set(chain(*padded))) == list(range(size))
        if size == 9:
            assert [part[-1] for part in padded] == [8, 8, 8, 8]
        if size == 11:
            assert [part[-1] for part in padded] == [8, 9, 10, 8]

    def test_batches_of_all_hosts_are_the_global_batch(self, make: Make) -> None:
        source = LocallyShuffleData(make(40), 10)
        hosts = [values(BatchData(ShardData(source, 2, h), 5), epoch=1) for h in (0, 1)]
        together = [sorted(a + b) for a, b in zip(*hosts, strict=True)]
        assert together == [sorted(batch) for batch in values(BatchData(source, 10), epoch=1)]

    def test_a_state_of_one_host_is_good_for_all(self, make: Make) -> None:
        def host(h: int) -> DataFlow:
            return MapData(ShardData(make(20), 3, h), lambda dp: dp)

        iterator = host(0).iterate(seed=0)
        next(iterator), next(iterator)
        assert [int(dp[0]) for dp in host(2).iterate(state=iterator.state())] == [8, 11, 14, 17]


def test_only_its_own_part_is_read() -> None:
    read: list[int] = []
    source = MapData(DataFromList([(i,) for i in range(12)]), lambda dp: read.append(dp[0]) or dp)
    assert values(ShardData(source, 3, 1)) == read == [1, 4, 7, 10]
    read.clear()
    assert values(ShardRows(BatchData(source, 6), 3, 1)) == [[2, 3], [8, 9]]
    assert read == [2, 3, 8, 9]


def test_an_endless_flow_and_a_flow_of_unknown_length() -> None:
    ds = ShardData(RepeatedData(numbers(5)), 2, 1)
    iterator = ds.iterate(seed=0)
    assert [int(next(iterator)[0]) for _ in range(5)] == [1, 3, 0, 2, 4]
    with pytest.raises(TypeError):
        len(ds)
    ds = ShardData(FilterData(numbers(10), lambda dp: dp[0] > 2), 2, 1, tail="uneven")
    assert values(ds) == [4, 6, 8]
    with pytest.raises(TypeError):
        len(ds)


@BOTH
def test_rows_of_global_batches(make: Make) -> None:
    def host(h: int, hosts: int) -> DataFlow:
        return ShardRows(BatchData(LocallyShuffleData(make(50), 25), 12), hosts, h)

    expected = values(BatchData(LocallyShuffleData(make(50), 25), 12))
    for hosts in (1, 2, 3):
        parts = [values(host(h, hosts)) for h in range(hosts)]
        assert [list(chain(*rows)) for rows in zip(*parts, strict=True)] == expected
    # The number of hosts may change at a restore: global batches go on where they were.
    iterator = host(1, 2).iterate(seed=0)
    next(iterator), next(iterator)
    state = iterator.state()
    parts = [[dp[0].tolist() for dp in host(h, 3).iterate(state=state)] for h in range(3)]
    assert [list(chain(*rows)) for rows in zip(*parts, strict=True)] == expected[2:]
    unsharded = BatchData(LocallyShuffleData(make(50), 25), 12)
    assert [dp[0].tolist() for dp in unsharded.iterate(state=state)] == expected[2:]


def test_hosts_without_a_common_seed_are_warned(caplog: pytest.LogCaptureFixture) -> None:
    shuffled = ShuffleData(numbers(8))
    for ds in (ShardData(shuffled, 2, 0), ShardRows(BatchData(shuffled, 2), 2, 0)):
        caplog.clear()
        next(iter(RepeatedData(ds)))
        assert "is one of several shards and has no seed" in caplog.text
    caplog.clear()
    next(ShardData(shuffled, 2, 0).iterate(seed=0))
    for ds in (ShardData(shuffled, 1, 0), ShardData(numbers(8), 2, 0), shuffled):
        next(iter(ds))
    assert "overlaps" not in caplog.text


def test_shards_that_are_not() -> None:
    for wrong in (
        lambda: ShardData(numbers(4), 2, 2),
        lambda: ShardData(numbers(4), 2, 0, tail="keep"),  # type: ignore[arg-type]
        lambda: ShardRows(numbers(4), 2, 0),
        lambda: ShardRows(BatchData(numbers(4), 3), 2, 0),
        lambda: ShardRows(BatchData(numbers(4), 4, remainder=True), 2, 0),
    ):
        with pytest.raises(ConfigError, match=r"shard|tail|index|a BatchData|divided evenly"):
            wrong()


class TestRepeatedDataPoint:
    @BOTH
    def test_each_several_times(self, make: Make) -> None:
        assert values(RepeatedDataPoint(make(3), 2)) == [0, 0, 1, 1, 2, 2]
        assert values(RepeatedDataPoint(make(3), 1)) == [0, 1, 2]
        assert len(RepeatedDataPoint(numbers(3), 4)) == 12
        batches = values(BatchData(RepeatedDataPoint(make(4), 3), 4))
        assert batches == [[0, 0, 0, 1], [1, 1, 2, 2], [2, 3, 3, 3]]
        with pytest.raises(ConfigError):
            RepeatedDataPoint(make(3), 0)

    @pytest.mark.parametrize("source", [generated(4), DataFromList([(i,) for i in range(4)])])
    def test_below_runs_once_and_arrays_are_ones_own(self, source: DataFlow) -> None:
        made: list[int] = []

        def make(dp: Any) -> Any:
            made.append(dp[0])
            return dp[0], np.zeros(2), {"boxes": [np.zeros(1)]}

        found = []
        for index, array, within in RepeatedDataPoint(MapData(source, make), 3):
            assert array.tolist() == [0, 0] and within["boxes"][0][0] == 0
            array += 1
            within["boxes"][0] += 1
            found.append(index)
        assert made == [0, 1, 2, 3] and found == sorted([0, 1, 2, 3] * 3)
        made.clear()
        ds = SelectComponent(RepeatedDataPoint(MapData(source, make), 3), [0, 1])
        for _, rows in BatchData(ds, 6):
            assert rows.shape == (6, 2)
        assert made == [0, 1, 2, 3]

    @BOTH
    def test_reuse_in_a_local_shuffle(self, make: Make) -> None:
        found = values(LocallyShuffleData(make(10), 4, 3, 100))
        assert sorted(found[:12]) == sorted([0, 1, 2, 3] * 3)
        assert sorted(found) == sorted(list(range(10)) * 3)
        assert max(found[:4]) > 1  # all of the window, not the first of it several times
        assert found == values(LocallyShuffleData(numbers(10), 4, num_reuse=3))
        with pytest.raises(ConfigError):
            LocallyShuffleData(make(10), 4, 0)
