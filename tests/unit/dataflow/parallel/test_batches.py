"""Batches that workers make of plans; slots, which all come back."""

from __future__ import annotations

import gc
import itertools
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from processes import wait_until
from shared_workers import shared_workers
from towerpack import MapError, WorkerError
from towerpack.dataflow import (
    BatchData,
    DataFlow,
    DataFromArrays,
    DataFromList,
    ItemRNG,
    MapData,
    PrefetchData,
    RepeatedData,
    ShuffleData,
    empty_row,
)
from towerpack.dataflow.parallel import _engine
from towerpack.dataflow.parallel._pool import QUEUED, Pool
from towerpack.dataflow.testing import same_datapoints

BACKENDS = pytest.mark.parametrize("backend", ["process", "thread"])
SIZE = 61


@pytest.fixture(scope="module", autouse=True)
def _shared_workers() -> Iterator[None]:
    with shared_workers():
        yield


def numbers(size: int = SIZE) -> DataFlow:
    return ShuffleData(DataFromArrays(np.arange(size)))


def picture(dp: Any, rng: np.random.Generator) -> Any:
    image = np.full((40, 50, 3), dp[0] % 251, np.uint8)
    return {"image": image, "mask": image[::-1] + 1, "x": rng.random(), "n": int(dp[0])}


def lent(dp: Any, rng: np.random.Generator) -> Any:
    one, other = empty_row((40, 50, 3), np.uint8), empty_row((40, 50, 3), np.uint8)
    one[:], other[:] = dp[0] % 251, rng.integers(0, 255)
    return (other, one) if dp[0] % 9 == 0 else (one, other)  # some rows are not where they belong


def text(dp: Any, rng: np.random.Generator) -> Any:
    return np.full((40, 50), dp[0]), "text" * int(dp[0] % 3)


def ragged(dp: Any, rng: np.random.Generator) -> Any:
    return (np.full((1 + dp[0] % 3, 4000), dp[0]),)


def sometimes_float(dp: Any, rng: np.random.Generator) -> Any:
    return np.full((40, 50), dp[0]), 0.5 if dp[0] == 17 else 1


def shift(dp: Any, rng: ItemRNG) -> Any:
    return (np.zeros((len(dp[0]), 40, 50)) + rng.random()[:, None, None], dp[0])


def images() -> DataFlow:
    return DataFromArrays(np.random.default_rng(0).integers(0, 255, (SIZE, 50, 60), np.uint8))


BATCHES: dict[str, Callable[[], DataFlow]] = {
    "arrays": lambda: BatchData(ShuffleData(images()), 8, remainder=True),
    "a map": lambda: BatchData(MapData(numbers(), picture, rng=True), 8, remainder=True),
    "rows that were lent": lambda: BatchData(MapData(numbers(), lent, rng=True), 8),
    "vectorised": lambda: BatchData(MapData(numbers(), shift, rng=True, batched=True), 7),
    "repeated below": lambda: BatchData(RepeatedData(images(), 2), 9),
    "types that change": lambda: BatchData(MapData(numbers(), sometimes_float, rng=True), 8),
    "text": lambda: BatchData(MapData(numbers(), text, rng=True), 8),
    "lists": lambda: BatchData(MapData(numbers(), picture, rng=True), 8, stack="list"),
    "a list": lambda: BatchData(DataFromList([(np.full(3000, i), i) for i in range(40)]), 8),
    "padded": lambda: BatchData(MapData(numbers(), ragged, rng=True), 2, pad=0),
}


@BACKENDS
@pytest.mark.parametrize("shape", BATCHES)
def test_same_as_serial(backend: Any, shape: str) -> None:
    flow = BATCHES[shape]()
    expected = list(flow.iterate(seed=0, epoch=0))
    ahead = PrefetchData(flow, num_proc=2, backend=backend)
    for _ in range(2):
        assert same_datapoints(list(ahead.iterate(seed=0, epoch=0)), expected)


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> set[Pool]:
    """Those that begin a pass."""
    found: set[Pool] = set()
    begin = Pool.begin

    def seen(self: Pool, key: Any, job: Any) -> None:
        found.add(self)
        begin(self, key, job)

    monkeypatch.setattr(Pool, "begin", seen)
    return found


def check_slots(pools: set[Pool]) -> None:
    """When all passes are over and the workers at rest, every single slot has come back."""
    (pool,) = pools
    gc.collect()

    def at_rest() -> bool:
        pool.wait(0.0)
        return not any(member.queue for member in pool.members)

    assert wait_until(at_rest, 10)
    assert pool.slots.lent == (0, 0)
    pool.slots.trim(0)
    assert pool.slots.total_bytes == 0


@BACKENDS
def test_slots_come_back_from_passes_that_are_broken_off(backend: Any, pools: set[Pool]) -> None:
    flow = PrefetchData(BATCHES["a map"](), num_proc=2, backend=backend)
    list(flow.iterate(seed=0, epoch=0))
    (pool,) = pools
    # Those that wait for the next pass, of units that workers are still at, and that were lent.
    most = pool.options.workers * (1 + QUEUED) + _engine._SPARE_SLOTS + 5
    for epoch in range(30):
        iterator = flow.iterate(seed=0, epoch=epoch)
        found = list(itertools.islice(iterator, 1 + epoch % 5))
        iterator.close()
        del found, iterator
        assert pool.slots.total_bytes <= most * pool.slots.wanted
    list(flow.iterate(seed=0, epoch=0))
    check_slots(pools)


@pytest.mark.parametrize(
    ("backend", "ends", "batch_size"),
    [("process", "an exception", 1), ("process", "a death", 4), ("thread", "an exception", 4)],
)
def test_slots_come_back_from_what_failed(
    batch_size: int, backend: Any, ends: str, pools: set[Pool]
) -> None:
    def fails(dp: Any) -> Any:
        if dp[0] == 31 and ends == "a death":
            os.kill(os.getpid(), signal.SIGKILL)
        if dp[0] == 31:
            raise ValueError("a bad one")
        return (np.full((50, 50), dp[0]),)

    flow = BatchData(MapData(DataFromArrays(np.arange(64)), fails), batch_size)
    ahead = PrefetchData(flow, num_proc=2, backend=backend)
    for times in (1, 3):
        iterator = ahead.iterate(seed=0, epoch=0)
        for _ in range(times):
            with pytest.raises((MapError, WorkerError)):
                list(iterator)
        iterator.close()
        del iterator
    check_slots(pools)
