"""States of passes that did not go in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np
import pytest

from towerpack import StateError
from towerpack.dataflow import DataFlow, DataFromArrays, MapData, PrefetchData
from towerpack.dataflow._done import Done

SIZE = 60
AT = {"from": 3, "ahead": [[5, 9], [20, 21]]}
LEFT = [3, 4, *range(9, 20), *range(21, SIZE)]

CONTINUED: dict[str, Callable[[DataFlow], DataFlow]] = {
    "without workers": lambda flow: flow,
    "in the consumer": lambda flow: PrefetchData(flow, num_proc=0, ordered=False),
    "in order": lambda flow: PrefetchData(flow, num_proc=2, backend="thread"),
}


def numbers() -> DataFlow:
    return MapData(DataFromArrays(np.arange(SIZE)), lambda dp: (int(dp[0]),))


def saved(at: Any) -> dict[str, Any]:
    return {**numbers().iterate(seed=0, epoch=0).state(), "at": at}


@pytest.mark.parametrize("continued", CONTINUED.values(), ids=CONTINUED)
def test_what_is_left_comes_in_order(continued: Callable[[DataFlow], DataFlow]) -> None:
    with continued(numbers()).iterate(state=saved(AT)) as iterator:
        assert [dp[0] for dp in iterator] == LEFT


@pytest.mark.parametrize("continued", CONTINUED.values(), ids=CONTINUED)
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
    [
        {"from": 3, "ahead": [[2, 9]]},
        {"from": 3, "ahead": [[5, SIZE + 1]]},
        {"from": 3, "ahead": [[5]]},
        {"from": -1, "ahead": []},
        {"ahead": []},
        {"from": "3", "ahead": []},
        {"from": 3, "ahead": 7},
    ],
)
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
