"""Shuffles, repeats, fixed sizes, concatenation, joins and caches."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from towerpack._core.errors import ConfigError, DataFlowError
from towerpack.dataflow import (
    BatchData,
    CacheData,
    ConcatData,
    DataFlow,
    DataFromArrays,
    DataFromGenerator,
    DataFromList,
    FixedSizeData,
    JoinData,
    LocallyShuffleData,
    MapData,
    RepeatedData,
    ShuffleData,
)


def numbers(n: int, start: int = 0) -> DataFromArrays:
    return DataFromArrays(np.arange(start, start + n))


def generated(n: int, start: int = 0) -> DataFromGenerator:
    return DataFromGenerator(lambda: ((i,) for i in range(start, start + n)))


def values(ds: DataFlow, **options: Any) -> list[int]:
    return [int(dp[0]) for dp in ds.iterate(**options)]


BOTH = pytest.mark.parametrize("make", [numbers, generated])


class TestShuffle:
    def test_every_datapoint_once_in_every_pass(self) -> None:
        for n in (1, 10, 5000):
            ds = ShuffleData(numbers(n))
            first, second = values(ds, seed=0), values(ds, seed=0)
            assert sorted(first) == sorted(second) == list(range(n))
            assert n == 1 or first != second != list(range(n))

    def test_blocks_of_a_long_pass(self) -> None:
        """Contiguous reads, single reads and scattered reads agree across block borders."""
        ds = ShuffleData(numbers(140_000))
        plan = ds.plan(seed=1)
        whole = [int(x) for (x,) in plan.read(range(140_000), epoch=2)]
        for start in (65_530, 131_065):
            expected = whole[start : start + 20]
            assert [int(x) for (x,) in plan.read(range(start, start + 20), epoch=2)] == expected
            assert [int(plan.get(start + i, epoch=2)[0]) for i in range(20)] == expected
        scattered = [139_999, 3, 65_536, 70_000]
        assert [int(x) for (x,) in plan.read(scattered, epoch=2)] == [whole[i] for i in scattered]
        batches = BatchData(ds, 1000).plan(seed=1)
        assert batches.get(65, epoch=2)[0].tolist() == whole[65_000:66_000]

    def test_places_have_their_own_order(self) -> None:
        twice = ShuffleData(ShuffleData(numbers(100)))
        once = values(ShuffleData(numbers(100)), seed=4)
        again = [once[i] for i in once]
        assert values(twice, seed=4) != again
        one, other = zip(*JoinData([ShuffleData(numbers(100))] * 2).iterate(seed=4), strict=True)
        assert one != other

    def test_wrapping_changes_nothing_inside(self) -> None:
        inner = ShuffleData(numbers(30))
        wrapped = MapData(FixedSizeData(ConcatData([RepeatedData(inner, 1)]), 30), lambda dp: dp)
        assert values(wrapped, seed=4) == values(inner, seed=4)

    def test_own_seed(self) -> None:
        ds = ShuffleData(numbers(100), seed=5)
        assert values(ds, seed=0, epoch=1) == values(ds, seed=1, epoch=1)
        assert values(ds, seed=0, epoch=0) != values(ds, seed=0, epoch=1)
        deeper = ShuffleData(MapData(numbers(100), lambda dp: dp), seed=5)
        assert values(deeper, seed=9) == values(ds, seed=0, epoch=0)

    def test_needs_random_access(self) -> None:
        with pytest.raises(ConfigError, match=r"DataFromGenerator.* can only be read in") as caught:
            ShuffleData(MapData(generated(4), lambda dp: dp))
        assert "LocallyShuffleData" in str(caught.value)
        for wrap in (ShuffleData, CacheData):
            with pytest.raises(ConfigError, match="must wrap a finite flow"):
                wrap(RepeatedData(numbers(3)))


class TestLocallyShuffle:
    @BOTH
    def test_stays_in_its_window(self, make: Any) -> None:
        found = values(LocallyShuffleData(make(25), 10), seed=3)
        assert found != sorted(found)
        for begin in (0, 10, 20):
            assert sorted(found[begin : begin + 10]) == list(range(begin, min(begin + 10, 25)))
        assert [x - 10 for x in found[10:20]] != found[:10]


class TestRepeat:
    @BOTH
    def test_passes_are_epochs(self, make: Any) -> None:
        inner = LocallyShuffleData(make(6), 6)
        epochs = [values(inner, seed=1, epoch=epoch) for epoch in range(4)]
        ds = RepeatedData(inner, 2)
        assert values(ds, seed=1, epoch=0) == epochs[0] + epochs[1]
        assert values(ds, seed=1, epoch=1) == epochs[2] + epochs[3]
        iterator = RepeatedData(inner).iterate(seed=1)
        endless = [int(next(iterator)[0]) for _ in range(24)]
        assert endless == [x for one in epochs for x in one]

    def test_lengths(self) -> None:
        assert len(RepeatedData(numbers(5), 3)) == 15
        for endless in (RepeatedData(numbers(5)), RepeatedData(generated(5))):
            with pytest.raises(TypeError, match="infinite"):
                len(endless)
        with pytest.raises(TypeError, match="not known"):
            len(RepeatedData(generated(5), 2))
        for wrong in (lambda: RepeatedData(numbers(5), 0), lambda: FixedSizeData(numbers(3), 0)):
            with pytest.raises(ConfigError):
                wrong()

    def test_nothing_is_not_repeated_for_ever(self) -> None:
        for empty in (numbers(0), generated(0), BatchData(numbers(3), 4)):
            for wrap in (RepeatedData, lambda ds: FixedSizeData(ds, 3)):
                with pytest.raises(DataFlowError, match="has no datapoints"):
                    next(wrap(empty).iterate())
        assert list(RepeatedData(generated(0), 2)) == []


class TestFixedSize:
    @BOTH
    def test_goes_on_where_it_stopped(self, make: Any) -> None:
        inner = LocallyShuffleData(make(5), 5)
        endless = [x for epoch in range(5) for x in values(inner, seed=1, epoch=epoch)]
        ds = FixedSizeData(inner, 7)
        for epoch in (0, 1, 2, 1, 0):
            assert values(ds, seed=1, epoch=epoch) == endless[epoch * 7 : epoch * 7 + 7]
        assert values(RepeatedData(ds, 3), seed=1) == endless[:21]
        assert len(ds) == 7

    @BOTH
    def test_of_endless(self, make: Any) -> None:
        ds = FixedSizeData(RepeatedData(make(3)), 4)
        assert [values(ds), values(ds)] == [[0, 1, 2, 0], [1, 2, 0, 1]]
        again = FixedSizeData(RepeatedData(make(3)), 4, False)
        assert [values(again), values(again)] == [[0, 1, 2, 0], [0, 1, 2, 0]]

    def test_sequential_reading_does_not_start_over(self) -> None:
        """The next pass over a stream begins where the last one ended, without rereading."""
        reads: list[int] = []

        def source() -> Iterator[tuple[int]]:
            for i in range(1000):
                reads.append(i)
                yield (i,)

        ds = FixedSizeData(DataFromGenerator(source), 10)
        assert [dp[0] for _ in range(5) for dp in ds] == list(range(50))
        assert len(reads) == 50
        iterator = RepeatedData(ds).iterate()
        assert [next(iterator)[0] for _ in range(50)] == list(range(50))
        assert len(reads) == 100

    def test_a_waiting_stream_serves_one_iterator(self) -> None:
        ds = FixedSizeData(generated(100), 10)
        finished = ds.iterate(seed=0, epoch=0)
        list(finished)
        state = finished.state()
        one, other = ds.iterate(seed=0, epoch=1), ds.iterate(seed=0, epoch=1)
        assert [(next(one)[0], next(other)[0]) for _ in range(3)] == [(10, 10), (11, 11), (12, 12)]
        finished.close()
        assert finished.state() == state and list(finished) == []
        assert next(one)[0] == 13


class TestConcat:
    def test_one_after_another(self) -> None:
        for ds in (
            ConcatData([numbers(3), numbers(2, 3), numbers(0), numbers(1, 5)]),
            ConcatData([generated(3), numbers(2, 3), generated(1, 5)]),
        ):
            assert values(ds) == list(range(6))
        assert len(ConcatData([numbers(3), numbers(2)])) == 5
        with pytest.raises(ConfigError):
            ConcatData([])

        kinds = ConcatData([DataFromArrays(np.zeros((2, 3))), DataFromArrays(np.zeros((2, 4)))])
        assert [len(x) for (x,) in kinds.plan().read([3, 0, 2, 1])] == [4, 3, 4, 3]
        # What follows an endless one is never reached.
        endless = ConcatData([numbers(1, 9), RepeatedData(numbers(2)), numbers(3)])
        assert [int(x) for (x,), _ in zip(endless, range(5), strict=False)] == [9, 0, 1, 0, 1]
        with pytest.raises(TypeError, match="infinite"):
            len(endless)


class TestJoin:
    def test_side_by_side(self) -> None:
        for ds in (JoinData([numbers(3), numbers(3, 5)]), JoinData([numbers(3), generated(3, 5)])):
            assert [tuple(map(int, dp)) for dp in ds] == [(0, 5), (1, 6), (2, 7)]
        lists = DataFromList([[1, 2]])
        assert list(JoinData([lists, DataFromList([(3,)])])) == [[1, 2, 3]]
        dicts = [DataFromList([{"a": 1, "b": 1}]), DataFromList([{"b": 2}])]
        assert list(JoinData(dicts)) == [{"a": 1, "b": 2}]
        batch = next(iter(BatchData(JoinData([numbers(4), numbers(4, 4)]), 2)))
        assert [column.tolist() for column in batch] == [[0, 1], [4, 5]]

    def test_stops_with_the_shortest(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING, "towerpack"):
            ds = JoinData([numbers(3), numbers(5)])
        assert "lengths are 3, 5" in caplog.text
        assert len(ds) == len(list(ds)) == 3
        assert len(list(JoinData([generated(5), numbers(3)]))) == 3
        assert len(JoinData([RepeatedData(numbers(2)), numbers(3)])) == 3

    def test_strict(self) -> None:
        with pytest.raises(ConfigError, match="must be equally long"):
            JoinData([numbers(3), numbers(5)], strict=True)
        for flows in ([generated(3), generated(4)], [numbers(5), generated(3)]):
            iterator = JoinData(flows, strict=True).iterate()
            for _ in range(3):
                next(iterator)
            for _ in range(2):
                with pytest.raises(DataFlowError, match="but one ended earlier"):
                    next(iterator)
        assert len(list(JoinData([generated(3), numbers(3)], strict=True))) == 3

    def test_an_error_in_one_loses_nothing_of_the_others(self) -> None:
        tries: list[int] = []

        def flaky(dp: Any) -> Any:
            if dp[0] == 2:
                tries.append(1)
                if len(tries) < 3:
                    raise OSError
            return dp

        def make() -> JoinData:
            return JoinData([generated(4), MapData(generated(4), flaky)])

        iterator = make().iterate()
        assert [next(iterator) for _ in range(2)] == [(0, 0), (1, 1)]
        for _ in range(2):
            with pytest.raises(DataFlowError):
                next(iterator)
        state = iterator.state()
        assert list(iterator) == list(make().iterate(state=state)) == [(2, 2), (3, 3)]
        with pytest.raises(DataFlowError, match="to join must all be"):
            list(JoinData([DataFromList([{"a": 1}]), DataFromList([(1,)])]))

    def test_one_seed_keeps_two_branches_together(self) -> None:
        source = ShuffleData(numbers(40), seed=1)
        joined = JoinData([MapData(source, lambda dp: dp), MapData(source, lambda dp: (-dp[0],))])
        assert all(a == -b for a, b in joined)


class TestCache:
    @BOTH
    def test_freezes_what_is_below_only(self, make: Any) -> None:
        below = RepeatedData(CacheData(LocallyShuffleData(make(20), 20)), 2)
        found = values(below, seed=1)
        assert found[:20] == found[20:] == values(LocallyShuffleData(make(20), 20), seed=1, epoch=0)
        above = RepeatedData(ShuffleData(CacheData(numbers(20))), 2)
        found = values(above, seed=1)
        assert found[:20] != found[20:]

    @BOTH
    def test_shuffled(self, make: Any) -> None:
        reads: list[int] = []

        def count(dp: Any) -> Any:
            reads.append(dp[0])
            return dp

        ds = CacheData(MapData(make(50), count), shuffle=True)
        first, second = values(ds, seed=1, epoch=0), values(ds, seed=1, epoch=1)
        assert sorted(first) == sorted(second) == list(range(50))
        assert first != second and first != list(range(50))
        assert len(reads) == 50
        # Whether something is kept already changes nothing, nor does where it came from.
        for source in (numbers, generated):
            fresh = CacheData(MapData(source(50), count), True)
            assert values(fresh, seed=1, epoch=1) == second

    def test_looking_at_a_flow_does_not_empty_it(self) -> None:
        reads: list[int] = []

        def count(dp: Any) -> Any:
            reads.append(1)
            return dp

        ds = CacheData(MapData(numbers(6), count))
        values(ds, seed=1)
        ShuffleData(ds)
        ds.plan(seed=2)
        values(ShuffleData(ds), seed=1)
        assert len(reads) == 6

    def test_arrays_are_read_only_and_the_source_stays_writable(self) -> None:
        mine = np.zeros(3)
        ds = CacheData(DataFromList([(mine,)]))
        (lent,) = next(iter(ds))
        with pytest.raises(ValueError, match="read-only"):
            lent += 1
        mine += 1


@pytest.mark.parametrize("source", ["a plan", "in order"])
def test_what_a_cache_hands_out_may_be_changed(source: str) -> None:
    items: list[Any] = [{"a": 1}, {"a": 2}]
    ds = CacheData(DataFromList(items) if source == "a plan" else DataFromGenerator(lambda: items))
    for _ in range(3):
        found = list(ds.iterate(seed=1))
        assert found == [{"a": 1}, {"a": 2}]
        for datapoint in found:
            datapoint["a"] = 99
    assert items[0] == {"a": 1}
