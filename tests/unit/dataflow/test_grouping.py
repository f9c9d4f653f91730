"""BatchDataByShape and BatchByLength."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaling import scaled
from towerpack._core.errors import BatchError, ConfigError, DataFlowError
from towerpack.dataflow import (
    BatchByLength,
    BatchDataByShape,
    DataFlow,
    DataFromGenerator,
    DataFromList,
    MapData,
    ShuffleData,
)
from towerpack.dataflow.testing import check_flow, same_datapoints

Make = Callable[[Sequence[Any]], DataFlow]


def generated(items: Sequence[Any]) -> DataFlow:
    return DataFromGenerator(lambda: iter(items))


BOTH = pytest.mark.parametrize("make", [DataFromList, generated])


def pictures(shapes: str) -> list[Any]:
    """One for each letter: `a` is 1 high, `b` is 2 high, and so on."""
    return [(np.zeros((ord(c) - 96, 2)), i) for i, c in enumerate(shapes)]


def members(ds: DataFlow) -> list[list[int]]:
    return [batch[1].tolist() for batch in ds]


@BOTH
class TestByShape:
    def test_batches_in_the_order_in_which_they_fill_up(self, make: Make) -> None:
        ds = BatchDataByShape(make(pictures("abababcaa")), 2, 0)
        assert members(ds) == [[0, 2], [1, 3], [4, 7], [5], [6], [8]]
        assert [batch[0].shape for batch in ds][:2] == [(2, 1, 2), (2, 2, 2)]
        with pytest.raises(TypeError):
            len(ds)

    def test_a_limit_for_what_waits(self, make: Make) -> None:
        ds = BatchDataByShape(make(pictures("abcdefa")), 2, 0, max_waiting=3)
        assert members(ds) == [[0], [1], [2], [3], [4], [5], [6]]
        iterator = ds.iterate()
        next(iterator)
        assert iterator.state()["at"]["read"] == 4
        ds = BatchDataByShape(make(pictures("abacada")), 3, 0, max_waiting=3)
        assert members(ds) == [[0, 2], [1], [3], [4, 6], [5]]
        ds = BatchDataByShape(make(pictures("aab")), 3, 0, max_waiting=0)
        assert members(ds) == [[0], [1], [2]]

    def test_errors_name_the_datapoint_and_lose_nothing(self, make: Make) -> None:
        iterator = BatchDataByShape(make([(np.zeros(1), 0), (np.zeros(1),)]), 2, 1).iterate()
        for _ in range(2):
            with pytest.raises(DataFlowError, match="failed to group datapoint 1: IndexError"):
                next(iterator)
        odd = [(np.zeros(2), 0), (np.zeros(2, np.int8), 1), (np.zeros(3), 2)]
        iterator = BatchDataByShape(make(odd), 2, 0).iterate(seed=0)
        for _ in range(2):
            with pytest.raises(BatchError, match="Datapoint 1 of a batch cannot be stacked"):
                next(iterator)
        again = BatchDataByShape(make(odd), 2, 0).iterate(state=iterator.state())
        with pytest.raises(BatchError, match="Datapoint 1 of a batch cannot be stacked"):
            next(again)


def test_a_resume_reads_just_what_waits() -> None:
    read: list[int] = []

    def look(dp: Any) -> Any:
        read.append(dp[1])
        return dp

    def pipeline() -> DataFlow:
        return BatchDataByShape(MapData(DataFromList(pictures("b" + "a" * 100)), look), 10, 0)

    iterator = pipeline().iterate(seed=0)
    for _ in range(5):
        next(iterator)
    state = iterator.state()
    assert state["at"]["waiting"] == [0] and state["at"]["read"] == 51
    read.clear()
    rest = pipeline().iterate(state=state)
    assert next(rest)[1].tolist() == list(range(51, 61))
    assert read == [0, *range(51, 61)]


def words(lengths: Sequence[int]) -> list[Any]:
    return [(np.full(n, i + 1), i) for i, n in enumerate(lengths)]


LENGTHS = [3, 9, 2, 12, 4, 5, 1, 10, 3]


@BOTH
class TestByLength:
    def test_buckets(self, make: Make) -> None:
        ds = BatchByLength(make(words(LENGTHS)), 2, [4, 9], pad=-1)
        assert members(ds) == [[0, 2], [1, 5], [4, 6], [3, 7], [8]]
        first = next(iter(ds))[0]
        assert first.tolist() == [[1, 1, 1], [3, 3, -1]]
        ds = BatchByLength(make(words(LENGTHS)), [4, 2, 1], [4, 9], remainder=False)
        assert members(ds) == [[3], [1, 5], [0, 2, 4, 6], [7]]

    def test_tokens(self, make: Make) -> None:
        ds = BatchByLength(make(words(LENGTHS)), max_tokens=12, boundaries=[3, 6, 12])
        batches = list(ds)
        assert all(batch[0].size <= 12 for batch in batches)
        assert members(ds) == [[1], [3], [4, 5], [7], [0, 2, 6, 8]]
        with pytest.raises(DataFlowError, match="length 9 is longer than the last boundary"):
            list(BatchByLength(make(words(LENGTHS)), max_tokens=12, boundaries=[3, 6]))

    def test_tokens_of_single_letters(self, make: Make) -> None:
        ds = BatchByLength(make(words([1, 1, 0, 2, 1])), max_tokens=4, boundaries=[1, 2])
        assert members(ds) == [[0, 1, 2, 4], [3]]

    def test_widths_of_boundaries(self, make: Make) -> None:
        items = [
            {"ids": np.ones(n, np.int32), "tags": np.ones((n, 2), bool), "y": np.zeros(3)}
            for n in (3, 2, 7, 6, 12)
        ]
        ds = BatchByLength(
            make(items), 2, [4, 8], length="ids", pad={"ids": 5, "tags": 0}, pad_to_boundary=True
        )
        shapes = [{key: column.shape for key, column in batch.items()} for batch in ds]
        assert shapes == [
            {"ids": (2, 4), "tags": (2, 4, 2), "y": (2, 3)},
            {"ids": (2, 8), "tags": (2, 8, 2), "y": (2, 3)},
            {"ids": (1, 12), "tags": (1, 12, 2), "y": (1, 3)},
        ]
        lists = [(np.ones(n), np.zeros(2)) for n in (3, 1)]
        (only,) = BatchByLength(make(lists), 2, [4], pad_to_boundary=True)
        assert only[0].shape == (2, 4) and only[1].shape == (2, 2)
        first = next(iter(ds))
        assert first["ids"].tolist() == [[1, 1, 1, 5], [1, 1, 5, 5]]
        assert first["ids"].dtype == np.int32 and first["tags"].dtype == np.bool_

    def test_a_length_of_ones_own(self, make: Make) -> None:
        ds = BatchByLength(
            make([("a bc",), ("d",), ("e fg",)]), 2, [1], length=lambda dp: dp[0].count(" ") + 1
        )
        assert [batch[0].tolist() for batch in ds] == [["a bc", "e fg"], ["d"]]
        with pytest.raises(DataFlowError, match="failed to group datapoint 0: TypeError"):
            list(BatchByLength(make([(1,)]), 2))


class TestKnownLengths:
    @settings(max_examples=scaled(800))
    @given(
        lengths=st.lists(st.integers(0, 12), max_size=40),
        boundaries=st.sets(st.integers(1, 11), max_size=3).map(sorted),
        sizes=st.lists(st.integers(1, 5), min_size=4, max_size=4),
        remainder=st.booleans(),
    )
    def test_as_without(
        self, lengths: list[int], boundaries: list[int], sizes: list[int], remainder: bool
    ) -> None:
        ds = DataFromList(words(lengths))
        sizes = sizes[: len(boundaries) + 1]
        gathered = BatchByLength(ds, sizes, boundaries, remainder=remainder)
        known = BatchByLength(ds, sizes, boundaries, lengths=lengths, remainder=remainder)
        expected = list(gathered)
        assert len(known) == len(expected)
        for one, other in zip(known, expected, strict=True):
            assert same_datapoints(one, other)

    def test_shuffled(self) -> None:
        lengths = np.random.default_rng(0).integers(1, 30, 500)
        ds = BatchByLength(DataFromList(words(lengths)), 8, [10, 20], lengths=lengths, shuffle=True)
        one, two = ([b[1].tolist() for b in ds.iterate(seed=0, epoch=e)] for e in (0, 1))
        assert one != two and len(one) == len(two) == len(ds)
        for batches in (one, two):
            assert sorted(chain(*batches)) == list(range(500))
            for batch in batches:
                assert len(set(np.searchsorted([10, 20], lengths[batch]))) == 1
        assert ds.plan(seed=0).get(17)[1].tolist() == one[17]
        # No bucket comes before another throughout.
        assert 5 < sum(lengths[batch[0]] <= 10 for batch in one[:30]) < 20
        small = DataFromList(words(LENGTHS))
        check_flow(lambda: BatchByLength(small, 2, [4], lengths=LENGTHS, shuffle=True))

    def test_wrong_lengths_are_found_out(self) -> None:
        items = DataFromList(words(LENGTHS))
        for wrong in (items, ShuffleData(items, seed=1)):
            lengths = [*LENGTHS[:4], 3, *LENGTHS[5:]] if wrong is items else LENGTHS
            with pytest.raises(DataFlowError, match=r"but lengths\[\d+\] is"):
                list(BatchByLength(wrong, 2, [4], lengths=lengths))

    def test_lengths_must_fit(self) -> None:
        ds = DataFromList(words(LENGTHS))
        for lengths in (LENGTHS[:-1], [LENGTHS], [float(n) for n in LENGTHS]):
            with pytest.raises(ConfigError, match="an integer for each datapoint"):
                BatchByLength(ds, 2, lengths=lengths)
        with pytest.raises(DataFlowError, match="longer than the last boundary"):
            BatchByLength(ds, max_tokens=50, boundaries=[10], lengths=LENGTHS)


def test_arguments_of_buckets() -> None:
    for arguments in (
        {"batch_size": 2, "shuffle": True},
        {"batch_size": 2, "max_tokens": 5},
        {"batch_size": 2, "boundaries": [3, 3]},
        {"batch_size": [1, 0, 2], "boundaries": [3, 4]},
        {"batch_size": [1, 2], "boundaries": [3, 4]},
        {"max_tokens": 10},
        {"max_tokens": 10, "boundaries": [20]},
    ):
        with pytest.raises(ConfigError):
            BatchByLength(DataFromList(words(LENGTHS)), **arguments)
