"""States of passes that did not go in order."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgpack
import numpy as np
import pytest

from towerpack import StateError
from towerpack.dataflow import (
    BatchData,
    BatchDataByShape,
    CacheData,
    DataFlow,
    DataFromArrays,
    FilterData,
    LocallyShuffleData,
    MapData,
    MixData,
    PrefetchData,
    ProxyDataFlow,
    RepeatedDataPoint,
)
from towerpack.dataflow._iteration_state import Done

SIZE = 60
AT = {"from": 3, "ahead": [[5, 9], [20, 21]]}
LEFT = [3, 4, *range(9, 20), *range(21, SIZE)]


def numbers() -> DataFlow:
    return MapData(DataFromArrays(np.arange(SIZE)), lambda dp: (int(dp[0]),))


def saved(at: Any) -> dict[str, Any]:
    return {**numbers().iterate(seed=0, epoch=0).state(), "at": at}


@pytest.mark.parametrize(
    "continued",
    [
        lambda flow: flow,
        lambda flow: PrefetchData(flow, num_proc=0, ordered=False),
        lambda flow: PrefetchData(flow, num_proc=2, backend="thread"),
    ],
)
def test_it_can_be_stopped_again_anywhere(continued: Callable[[DataFlow], DataFlow]) -> None:
    with continued(numbers()).iterate(state=saved(AT)) as iterator:
        for taken in range(len(LEFT)):
            state = msgpack.unpackb(msgpack.packb(iterator.state()))
            rest = [dp[0] for dp in numbers().iterate(state=state)]
            assert rest == LEFT[taken:]
            next(iterator)
    assert iterator.state()["at"] == SIZE


@pytest.mark.parametrize(
    "at",
    [{"from": 3, "ahead": [[2, 9]]}, {"from": 3, "ahead": [[5, SIZE + 1]]}, {"ahead": []},
     {"from": 3, "ahead": [[5]]}, {"from": -1, "ahead": []}, {"from": "3", "ahead": []},
     {"from": 3, "ahead": 7}],
)  # fmt: skip
def test_damaged(at: Any) -> None:
    with pytest.raises(StateError):
        list(numbers().iterate(state=saved(at)))


def test_ranges_grow_together() -> None:
    done = Done(None, 10)
    for position in (4, 2, 3, 0):
        done.add(position)
    assert done.state() == {"from": 1, "ahead": [[2, 5]]}
    done.add(1)
    assert done.state() == 5
    assert done.gaps(10) == [(5, 10)]


class OfTheUser(ProxyDataFlow):
    pass


def late(dp: Any) -> Any:
    time.sleep(0.004 * (int(dp[0]) % 4 == 0))
    return (int(dp[0]),)


ABOVE: dict[str, Callable[[DataFlow], DataFlow]] = {
    "by shape": lambda ds: BatchDataByShape(ds, 3, 0),
    "a vectorised map": lambda ds: MapData(ds, lambda block: block, batched=True),
    "a shuffled cache": lambda ds: CacheData(ds, shuffle=True),
    "a window": lambda ds: LocallyShuffleData(FilterData(ds, lambda dp: dp[0] != 7), 8),
    "repeated": lambda ds: RepeatedDataPoint(FilterData(ds, lambda dp: dp[0] != 7), 2),
    "code of the user's": OfTheUser,
    "batches of code of the user's": lambda ds: BatchData(OfTheUser(ds), 3, remainder=True),
    "mixed": lambda ds: MixData([ds, DataFromArrays(np.arange(100, 120))], [2, 1]),
}


@pytest.mark.parametrize("make", ABOVE.values(), ids=ABOVE)
def test_nothing_is_lost_or_repeated_by_a_resume(make: Callable[[DataFlow], DataFlow]) -> None:
    """Stages that read again after a resume must find what they found before."""

    def flow(workers: int) -> DataFlow:
        ds = MapData(DataFromArrays(np.arange(40)), late)
        return make(PrefetchData(ds, num_proc=workers, ordered=False, backend="thread"))

    def numbers(datapoints: Iterable[Any]) -> list[int]:
        return [int(n) for dp in datapoints for n in np.ravel(dp[0])]

    expected = sorted(numbers(flow(0).iterate(seed=1, epoch=0)))
    with flow(3).iterate(seed=1, epoch=0) as iterator:
        before = numbers(itertools.islice(iterator, 9))
        state = msgpack.unpackb(msgpack.packb(iterator.state()))
    for num_proc in (0, 3):
        with flow(num_proc).iterate(state=state) as iterator:
            assert sorted(before + numbers(iterator)) == expected
