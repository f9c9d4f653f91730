"""Code of the user's that ends in ways of its own: nothing hangs, nothing seems to be the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import pytest

from every_flow import planned
from small_flows import Noise, Twice
from towerpack import DataFlowError
from towerpack.dataflow import (
    BatchData,
    CacheData,
    DataFlow,
    DataFromArrays,
    DataFromGenerator,
    DataFromList,
    MapData,
    PrefetchData,
    ProxyDataFlow,
    RepeatedData,
    ShuffleData,
    TestDataSpeed,
)
from towerpack.dataflow.testing import same_datapoints

WRAPS: dict[str, Callable[[DataFlow], DataFlow]] = {
    "serial": lambda ds: ds,
    "threads": lambda ds: PrefetchData(ds, num_proc=2, backend="thread"),
    "batches in threads": lambda ds: PrefetchData(BatchData(ds, 8), num_proc=2, backend="thread"),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("error", [SystemExit("boo"), KeyboardInterrupt()])
@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_what_is_no_exception_reaches_the_consumer(
    wrap: Callable[[DataFlow], DataFlow], error: BaseException
) -> None:
    def leaves(dp: Any) -> Any:
        if dp[0] == 70:
            raise error
        return dp

    found = 0
    with pytest.raises(type(error)):
        for _ in wrap(MapData(DataFromArrays(np.arange(200)), leaves)):
            found += 1
    assert found in (70, 8)


class Interrupted:
    """A generator that is interrupted once."""

    def __init__(self) -> None:
        self.left = 1

    def __call__(self) -> Iterator[Any]:
        for i in range(6):
            if i == 3 and self.left:
                self.left -= 1
                raise KeyboardInterrupt
            yield (i,)


@pytest.mark.parametrize("above", [CacheData, lambda ds: RepeatedData(ds, 1), lambda ds: ds])
def test_an_interrupt_is_not_the_end(above: Callable[[DataFlow], DataFlow]) -> None:
    ds = above(DataFromGenerator(Interrupted()))
    iterator = ds.iterate(seed=1)
    found = [next(iterator) for _ in range(3)]
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    assert [i for (i,) in [*found, *iterator]] == list(range(6))
    assert len(list(ds.iterate(seed=1))) == 6


class Stops:
    """A list whose elements raise, as `next` without a default does."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        if index == 3:
            raise self.error
        return (index,)


@pytest.mark.parametrize("error", [StopIteration(), KeyError("x")])
def test_lists_that_raise(error: Exception) -> None:
    ds = DataFromList(cast("Any", Stops(error)))
    prefetched = PrefetchData(ds, num_proc=1, backend="thread", ordered=False)
    for above in (ds, ShuffleData(ds), RepeatedData(ds, 2), BatchData(ds, 2), prefetched):
        with pytest.raises(DataFlowError, match=rf"Stops\[3\] raised {type(error).__name__}"):
            list(above)


@pytest.mark.parametrize("outer", [ProxyDataFlow, Twice])
@pytest.mark.parametrize("inner", [lambda: Noise(6), lambda: ProxyDataFlow(planned(6))])
def test_transparent_stages_between_code_of_the_users(
    inner: Callable[[], DataFlow], outer: Callable[[DataFlow], DataFlow]
) -> None:
    between = TestDataSpeed(PrefetchData(inner(), num_proc=1, backend="thread"))
    plain, wrapped = outer(inner()), outer(between)
    expected = list(plain.iterate(seed=5, epoch=1))
    assert same_datapoints(list(wrapped.iterate(seed=5, epoch=1)), expected)
    iterator = plain.iterate(seed=5, epoch=1)
    next(iterator)
    assert same_datapoints(list(wrapped.iterate(state=iterator.state())), expected[1:])
