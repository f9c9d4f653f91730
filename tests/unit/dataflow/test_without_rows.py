"""`WithoutRows`: what is left is what a filter would leave, with the same random numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from towerpack import ConfigError, DataFlowError, StateError
from towerpack.dataflow import (
    BatchData,
    ConcatData,
    DataFlow,
    DataFromArrays,
    DataFromList,
    FilterData,
    FixedSizeData,
    JoinData,
    LocallyShuffleData,
    MapData,
    MixData,
    PrefetchData,
    RandomMixData,
    RepeatedData,
    RepeatedDataPoint,
    ShardData,
    ShuffleData,
    WithoutRows,
)
from towerpack.dataflow.pipeline_names import without_sizes

N, DROPPED = 5000, [0, 4999, 17, 18, 2500, 17]
ROWS = DataFromArrays(np.arange(N))
FEW = DataFromList([(i,) for i in range(N, N + 70)])


def noisy(point: Any, rng: np.random.Generator) -> Any:
    return int(point[0]), int(rng.integers(1 << 40))


FLOWS: dict[str, Callable[[], DataFlow]] = {
    "source": lambda: ROWS,
    "shuffled": lambda: MapData(ShuffleData(ROWS), noisy, rng=True),
    "twice": lambda: ShuffleData(MapData(ShuffleData(ROWS), noisy, rng=True)),
    "windows": lambda: LocallyShuffleData(ROWS, 300, 2),
    "concatenated": lambda: ShuffleData(ConcatData([FEW, ROWS])),
    "mixed": lambda: MixData([ShuffleData(ROWS), FEW], [3, 1], stop="all"),
    "interleaved": lambda: RandomMixData([ROWS, ShuffleData(FEW)]),
    "repeated points": lambda: RepeatedDataPoint(ShuffleData(ROWS), 2),
    "joined": lambda: JoinData([ShuffleData(ROWS, seed=1), ShuffleData(ROWS, seed=1)]),
    "workers": lambda: PrefetchData(MapData(ShuffleData(ROWS), noisy, rng=True), 2),
}


def read(flow: DataFlow, epoch: int) -> list[Any]:
    with flow.iterate(seed=4, epoch=epoch) as points:
        return [tuple(map(int, point)) for point in points]


@pytest.mark.parametrize("name", FLOWS)
def test_the_other_rows_stay_as_they_are(name: str) -> None:
    several = name in ("concatenated", "mixed", "interleaved", "joined")
    rows: Any = [(str(ROWS), row) for row in DROPPED] if several else DROPPED
    flow = WithoutRows(FLOWS[name](), rows)
    for epoch in (0, 3, 1):
        left = [point for point in read(FLOWS[name](), epoch) if point[0] not in DROPPED]
        assert read(flow, epoch) == left
        assert len(flow) == len(left)
    filtered = FilterData(FLOWS[name](), lambda dp: dp[0] not in DROPPED)
    repeated = [RepeatedData(BatchData(each, 64), 2) for each in (flow, filtered)]
    passes = [each.iterate(seed=4, epoch=1) for each in repeated]
    left, right = (np.concatenate([batch[0] for batch in batches]) for batches in passes)
    assert np.array_equal(left, right)


def test_shards_share_what_is_left() -> None:
    flow = WithoutRows(ShuffleData(ROWS), DROPPED)
    shards = [read(ShardData(flow, 3, index), 2) for index in range(3)]
    assert [point for points in zip(*shards, strict=True) for point in points] == read(flow, 2)


def test_stages_above_keep_their_random_keys() -> None:
    whole = read(MapData(ROWS, noisy, rng=True), 1)
    assert read(MapData(WithoutRows(ROWS, [N - 1]), noisy, rng=True), 1) == whole[:-1]


def test_rows_are_named_by_origins() -> None:
    flow = ShuffleData(ConcatData([FEW, ROWS]))
    plan = flow.plan(seed=4)
    chosen = [5, 300, 4000]
    origins = [origin for position in chosen for origin in plan.origin(position, epoch=2)]
    left = read(WithoutRows(flow, origins), 2)
    assert left == [point for i, point in enumerate(read(flow, 2)) if i not in chosen]


def test_states_know_the_rows() -> None:
    flow = BatchData(WithoutRows(ShuffleData(ROWS), [4, 2]), 8)
    iterator = flow.iterate(seed=4, epoch=0)
    next(iterator)
    state = iterator.state()
    again = BatchData(WithoutRows(ShuffleData(ROWS), np.array([2, 4, 2])), 8)
    assert np.array_equal(next(again.iterate(state=state))[0], next(iterator)[0])
    with pytest.raises(StateError) as caught:
        BatchData(WithoutRows(ShuffleData(ROWS), [4]), 8).iterate(state=state)
    # A run may continue without more rows at the end of an epoch.
    texts = [caught.value.got, caught.value.expected, str(BatchData(ShuffleData(ROWS), 8))]
    assert len({without_sizes(str(text)) for text in texts}) == 1


@pytest.mark.parametrize(
    ("make", "rows", "message"),
    [
        (lambda: ROWS, [N], "exactly one row 5000"),
        (lambda: ROWS, [("Other", 1)], "Other"),
        (lambda: ROWS, [-1], "index of a row"),
        (lambda: ROWS, ["4"], "index of a row"),
        (lambda: ConcatData([ROWS, FEW]), [1], "exactly one row 1"),
        (lambda: BatchData(ROWS, 8), [1], "below BatchData"),
        (lambda: FilterData(ROWS, lambda dp: True), [1], "can only be read in order"),
        (lambda: RepeatedData(ROWS), [1], "below BatchData"),
    ],
)
def test_wrong_rows(make: Callable[[], DataFlow], rows: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        WithoutRows(make(), rows)


def test_sources_of_one_name_are_told_apart() -> None:
    mixed = ConcatData([ShuffleData(ROWS), DataFromArrays(np.arange(N) + N)])
    plan = mixed.plan(seed=4)
    origins = [origin for i in (3, N + 17) for origin in plan.origin(i, epoch=1)]
    left = [point for i, point in enumerate(read(mixed, 1)) if i not in (3, N + 17)]
    assert read(WithoutRows(mixed, origins), 1) == left


def test_passes_with_other_rows() -> None:
    uneven = WithoutRows(FixedSizeData(DataFromArrays(np.arange(10)), 7), [8])
    with pytest.raises(DataFlowError, match="but other passes contain 0"):
        [read(uneven, epoch) for epoch in range(3)]
