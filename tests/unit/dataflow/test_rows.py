"""Rows of a batch that are lent to maps: used, and never seen in what is in a batch."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from towerpack._core.errors import BatchError, MapError
from towerpack.dataflow import (
    BatchData,
    CacheData,
    ConcatData,
    DataFlow,
    DataFromArrays,
    DataFromGenerator,
    LocallyShuffleData,
    MapData,
    PrefetchData,
    RepeatedData,
    SelectComponent,
    ShardRows,
    ShuffleData,
    empty_row,
)
from towerpack.dataflow.testing import same_datapoints

SHAPE = (5, 3)
SIZE = 8
Empty = Callable[[Any, Any], Any]
Make = Callable[[int, Empty], Any]


def numbers(n: int = 40) -> DataFromArrays:
    return DataFromArrays(np.arange(n))


def filled(row: Any, value: Any) -> Any:
    row[...] = value
    return row


class Maker:
    """A map function that remembers which memory it was given."""

    def __init__(self) -> None:
        self.rows: list[np.ndarray] = []
        self._lock = threading.Lock()

    def __call__(self, dp: Any) -> Any:
        row = filled(empty_row(SHAPE, np.float32), dp[0])
        with self._lock:
            self.rows.append(row)
        return row, int(dp[0])

    @property
    def lent(self) -> list[bool]:
        """Of which rows the memory is not their own."""
        return [row.base is not None for row in self.rows]


def test_what_is_made_in_rows_is_not_copied() -> None:
    for between in (
        lambda ds: ds,
        ShuffleData,
        lambda ds: LocallyShuffleData(ds, 16),
        lambda ds: ConcatData([ds, ds]),
        lambda ds: RepeatedData(ShuffleData(ds), -1),
    ):
        make = Maker()
        iterator = BatchData(between(MapData(numbers(), make)), SIZE).iterate(seed=0)
        for number in range(5):
            batch = next(iterator)
            rows = make.rows[number * SIZE :]
            assert len(rows) == SIZE
            assert all(np.shares_memory(batch[0], row) for row in rows)
            assert (batch[0][:, 0, 0] == batch[1]).all()


def test_the_last_smaller_batch_and_shards_of_batches_are_made_in_rows() -> None:
    make = Maker()
    batches = list(BatchData(MapData(numbers(20), make), SIZE, remainder=True))
    assert [len(batch[0]) for batch in batches] == [8, 8, 4]
    assert all(np.shares_memory(batches[2][0], row) for row in make.rows[16:])
    make = Maker()
    batches = list(ShardRows(BatchData(MapData(numbers(), make), SIZE), 2, 1))
    assert all(np.shares_memory(batches[1][0], row) for row in make.rows[4:8])
    assert batches[1][1].tolist() == [12, 13, 14, 15]


def test_anywhere_else_it_is_memory_of_its_own() -> None:
    for place in (
        lambda make: BatchData(SelectComponent(MapData(numbers(), make), [1, 0]), SIZE),
        lambda make: BatchData(CacheData(MapData(numbers(), make)), SIZE),
        lambda make: BatchData(MapData(MapData(numbers(), make), list), SIZE),
        lambda make: BatchData(MapData(MapData(numbers(), make), tuple, batched=True), SIZE),
        lambda make: BatchData(MapData(numbers(), make, on_error="skip"), SIZE),
        lambda make: MapData(numbers(), make),
    ):
        make = Maker()
        assert len(list(place(make))) in (5, 40)
        assert make.lent == [False] * 40
    assert empty_row(SHAPE, "int8").base is None


def test_the_map_on_top_has_rows_and_the_one_below_has_none() -> None:
    below, top = Maker(), Maker()
    flow = BatchData(MapData(MapData(numbers(), below), lambda dp: top([dp[1]])), SIZE)
    batches = list(flow)
    assert below.lent == [False] * 40
    assert top.lent == [True] * 40
    assert np.concatenate([batch[1] for batch in batches]).tolist() == list(range(40))


def test_a_pipeline_that_a_function_reads_has_no_rows_of_it() -> None:
    """A cache in there would keep what the batch, and later other batches, are made in."""
    inner, outer = Maker(), Maker()
    in_order = MapData(DataFromGenerator(lambda: ([i] for i in range(40))), inner)
    flows = [in_order, MapData(numbers(), inner), CacheData(in_order)]
    plan = MapData(numbers(), inner).plan(seed=0)

    def f(dp: Any) -> Any:
        position = int(dp[0])
        others = [next(flow.iterate(seed=0))[0] for flow in flows]
        others += [plan.get(position)[0], plan.read(range(position, position + 1))[0][0]]
        return (*outer(dp), *others)

    batches = list(BatchData(MapData(numbers(), f), SIZE))
    assert not any(inner.lent) and all(outer.lent)
    for batch in batches:
        assert (batch[0][:, 0, 0] == batch[1]).all() and not any(one.any() for one in batch[2:5])
        assert (batch[5] == batch[0]).all() and (batch[6] == batch[0]).all()


def test_a_batch_inside_of_a_function_has_rows_of_its_own() -> None:
    inner, outer = Maker(), Maker()
    small = BatchData(MapData(numbers(6), inner), 2)

    def f(dp: Any) -> Any:
        before = empty_row(SHAPE, np.float32)
        first, second, _ = list(small)
        return filled(before, dp[0]), first[0], second[0], outer(dp)[0]

    for index, batch in enumerate(BatchData(MapData(numbers(), f), SIZE)):
        wanted = np.arange(index * SIZE, index * SIZE + SIZE)
        assert (batch[0][:, 0, 0] == wanted).all() and (batch[3][:, 0, 0] == wanted).all()
        assert (batch[1] == [[[0]], [[1]]]).all() and (batch[2] == [[[2]], [[3]]]).all()


def test_an_error_ends_the_lending() -> None:
    make = Maker()
    bad = {11, 13}

    def f(dp: Any) -> Any:
        if int(dp[0]) in bad:
            bad.remove(int(dp[0]))
            raise ValueError("bad")
        return make(dp)

    iterator = BatchData(MapData(numbers(), f), SIZE).iterate(seed=0)
    next(iterator)
    for _ in range(2):
        with pytest.raises(MapError, match="bad"):
            next(iterator)
        assert empty_row(SHAPE, np.float32).base is None
    second = next(iterator)
    assert second[1].tolist() == list(range(8, 16)) and (second[0][:, 0, 0] == second[1]).all()
    assert all(np.shares_memory(second[0], row) for row in make.rows[-SIZE:])


def once(position: int, empty: Empty) -> Any:
    return [filled(empty(SHAPE, np.int32), position)]


def turned(position: int, empty: Empty) -> Any:
    row = empty((3, 3), np.int32)
    row[...] = np.arange(9).reshape(3, 3) + position
    return {"turned": row.T, "back": row[::-1], "as it is": row}


def other_shape(position: int, empty: Empty) -> Any:
    return [once(position, empty)[0].reshape(3, 5)]


def neighbours(position: int, empty: Empty) -> Any:
    row = filled(empty((2,), np.int64), position)
    return row, row[:1], row[1:], row


def scalars(position: int, empty: Empty) -> Any:
    return filled(empty((), np.int32), position), filled(empty((0, 3), np.int8), 0)


class Swapping:
    """Gives rows of a batch in another order: 1 0 3 2 5 4 7 6."""

    kept: Any = None

    def __call__(self, position: int, empty: Empty) -> Any:
        if position % 2 == 0:
            self.kept = empty(SHAPE, np.int32)
            return [np.full(SHAPE, position, np.int32)]
        return [filled(self.kept, position)]


class Late:
    """Gives the row of the datapoint before."""

    kept: Any = np.zeros(SHAPE, np.int32)

    def __call__(self, position: int, empty: Empty) -> Any:
        row, self.kept = self.kept, filled(empty(SHAPE, np.int32), position)
        return [row]


ODD: list[Callable[[], Make]] = [
    *(lambda f=f: f for f in (turned, other_shape, neighbours, scalars)),
    Swapping,
    Late,
]


@pytest.mark.parametrize("new", ODD, ids=lambda new: getattr(new(), "__name__", new.__name__))
def test_what_a_function_does_with_rows_never_shows(new: Callable[[], Make]) -> None:
    lent, plain = new(), new()
    got = list(BatchData(MapData(numbers(), lambda dp: lent(int(dp[0]), empty_row)), SIZE))
    wanted = list(BatchData(MapData(numbers(), lambda dp: plain(int(dp[0]), np.empty)), SIZE))
    assert same_datapoints(got, wanted)
    arrays = [array for one in got for array in (one.values() if isinstance(one, dict) else one)]
    assert all(array.flags.c_contiguous and array.flags.writeable for array in arrays)
    assert not any(np.shares_memory(a, b) for a, b in itertools.combinations(arrays, 2))


def test_ragged_rows() -> None:
    def f(dp: Any) -> Any:
        return [filled(empty_row((1 + int(dp[0]) % 3, 2), np.float32), dp[0])]

    flow = MapData(numbers(), f)
    with pytest.raises(BatchError, match="cannot be stacked"):
        list(BatchData(flow, SIZE))
    for number, batch in enumerate(BatchData(flow, SIZE, pad=-1)):
        assert batch[0].shape == (SIZE, 3, 2)
        for row, position in zip(batch[0], range(number * SIZE, number * SIZE + SIZE), strict=True):
            height = 1 + position % 3
            assert (row[:height] == position).all() and (row[height:] == -1).all()


# What one component of a datapoint is made in: a row, memory of its own, a row that is thrown away
# first, a copy of a row, the row that the component before asked for.
WAYS = ("row", "own", "second", "copy", "same")


def made(ways: tuple[str, ...], position: int, empty: Empty) -> Any:
    components: list[Any] = []
    for number, way in enumerate(ways):
        if way == "same" and components:
            components.append(components[-1])
            continue
        if way == "second":
            empty(SHAPE, np.int16)[...] = 99
        row = filled((np.empty if way == "own" else empty)(SHAPE, np.int16), position * 4 + number)
        components.append(row.copy() if way == "copy" else row)
    return components


@given(
    table=st.lists(
        st.tuples(*[st.sampled_from(WAYS)] * 3) | st.just(("row", "row", "row")),
        min_size=1,
        max_size=24,
    ),
    batch=st.integers(1, 6),
    between=st.sampled_from(
        [
            lambda ds: ds,
            ShuffleData,
            lambda ds: RepeatedData(ds, 3),
            lambda ds: ConcatData([ds, ds]),
            lambda ds: ShuffleData(RepeatedData(ds, 3)),
        ]
    ),
)
def test_any_mixture_gives_the_same_batches(
    table: list[tuple[str, ...]], batch: int, between: Callable[[DataFlow], DataFlow]
) -> None:
    def flow(empty: Empty) -> DataFlow:
        def f(dp: Any) -> Any:
            return made(table[int(dp[0]) % len(table)], int(dp[0]), empty)

        return BatchData(between(MapData(numbers(24), f)), batch, remainder=True)

    got = list(flow(empty_row).iterate(seed=1))
    assert same_datapoints(got, list(flow(np.empty).iterate(seed=1)))
    arrays = [array for one in got for array in one]
    spans = sorted((array.ctypes.data, array.nbytes) for array in arrays)
    assert all(at + size <= after for (at, size), (after, _) in itertools.pairwise(spans))


def test_workers_give_the_same() -> None:
    shape = (40, 40, 20)  # large enough for slots to be lent

    def f(dp: Any) -> Any:
        position = int(dp[0])
        ways = ("row", "row", WAYS[position % 5] if position // 64 % 2 else "row")
        return [*made(ways, position, empty_row), filled(empty_row(shape, np.float32), position)]

    flow = BatchData(ShuffleData(MapData(numbers(128), f)), SIZE)
    serial = [[np.array(x) for x in batch] for batch in flow.iterate(seed=3)]
    for backend in ("process", "thread"):
        ahead = PrefetchData(flow, num_proc=2, backend=backend)
        assert same_datapoints(list(ahead.iterate(seed=3)), serial)
