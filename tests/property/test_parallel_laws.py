"""The laws of `towerpack.dataflow.testing` on parallel stages, for any number of workers.

Workers take a good part of a second to start, so the flows that a test makes share theirs.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaling import sample, scaled
from shared_workers import shared_workers
from towerpack.dataflow import (
    BatchData,
    BatchDataByShape,
    ConcatData,
    DataFlow,
    DataFromArrays,
    DataFromGenerator,
    DataFromList,
    FilterData,
    ItemRNG,
    JoinData,
    LocallyShuffleData,
    MapData,
    MultiProcessMapAndBatchData,
    MultiProcessMapData,
    MultiThreadMapData,
    PrefetchData,
    RepeatedData,
    ShuffleData,
)
from towerpack.dataflow.testing import check_flow, same_datapoints

Wrap = Callable[[DataFlow], DataFlow]


@pytest.fixture(scope="module", autouse=True)
def _shared_workers() -> Iterator[None]:
    logger = logging.getLogger("towerpack.dataflow")
    level = logger.level
    logger.setLevel(logging.ERROR)
    with shared_workers():
        yield
    logger.setLevel(level)


def _numbers() -> Iterator[Any]:
    for i in range(23):
        yield {"x": np.full((i % 3 + 1,), i, np.int16), "name": f"number {i}"}


def _generated() -> DataFlow:
    return DataFromGenerator(_numbers)


def _alike() -> DataFlow:
    """Those of one shape, which stack."""
    return DataFromGenerator(lambda: ({**dp, "x": dp["x"][:1]} for dp in _numbers()))


def _jitter(dp: Any, rng: np.random.Generator) -> Any:
    return {**dp, "r": rng.integers(0, 1000, 3)}


def _no_sevens(dp: Any) -> Any:
    if dp["x"][0] % 7 == 3:
        raise ValueError("a seven")
    return dp


def _arrays() -> DataFlow:
    return DataFromArrays(np.arange(60, dtype=np.float32).reshape(30, 2), np.arange(30))


def _shift(dp: Any, rng: ItemRNG) -> Any:
    return dp[0] + rng.uniform(size=2), dp[1]


def _add(dp: Any, rng: np.random.Generator) -> Any:
    return dp[0] + rng.normal(), int(dp[1]), "text" * int(dp[1] % 3)


def _odd(dp: Any) -> Any:
    return {"none": None, "list": [dp, {1: b"two"}], "empty": dp[0][:0], "scalar": np.array(dp[1])}


SHAPES: dict[str, Callable[[Wrap], DataFlow]] = {
    "plan": lambda p: p(MapData(ShuffleData(_arrays()), _add, rng=True)),
    "odd values": lambda p: p(MapData(_arrays(), _odd)),
    "batches": lambda p: p(BatchData(MapData(ShuffleData(_arrays()), _add, rng=True), 4)),
    "vectorised": lambda p: p(MapData(ShuffleData(_arrays()), _shift, batched=True, rng=True)),
    "lifted": lambda p: BatchData(ShuffleData(p(MapData(_arrays(), _add, rng=True))), 7),
    "repeated": lambda p: RepeatedData(p(BatchData(_arrays(), 7, remainder=True)), 3),
    "map above": lambda p: MapData(p(MapData(_arrays(), _add, rng=True)), lambda dp: dp[:1]),
    "two engines": lambda p: JoinData([p(_arrays()), p(ShuffleData(_arrays()))]),
    "one after another": lambda p: ConcatData([p(_arrays()), p(ShuffleData(_arrays()))]),
    "nested": lambda p: p(BatchData(p(MapData(_arrays(), _add, rng=True)), 3)),
    "list": lambda p: p(DataFromList([(i, "x" * i) for i in range(25)], shuffle=True)),
    "generator": lambda p: p(MapData(_generated(), _jitter, rng=True)),
    "two maps": lambda p: p(MapData(MapData(_generated(), _jitter, rng=True), _jitter, rng=True)),
    "skips": lambda p: p(MapData(_generated(), _no_sevens, on_error="skip")),
    "maps above a skip": lambda p: p(
        MapData(MapData(_generated(), _no_sevens, on_error="skip"), _jitter, rng=True)
    ),
    "skips over a plan": lambda p: p(
        MapData(DataFromList(list(_numbers()), shuffle=True), _no_sevens, on_error="skip")
    ),
    "filter": lambda p: p(
        FilterData(MapData(_generated(), _jitter, rng=True), lambda dp: dp["r"][0] < 500)
    ),
    "filter over a plan": lambda p: p(FilterData(MapData(_arrays(), _add, rng=True), _is_even)),
    "source that skips": lambda p: p(
        MapData(LocallyShuffleData(MapData(_generated(), _no_sevens, on_error="skip"), 5), _jitter,
                rng=True)
    ),
    "batches of a generator": lambda p: p(
        BatchData(MapData(MapData(_alike(), _jitter, rng=True), _jitter, rng=True), 4)
    ),
    "lifted over a generator": lambda p: BatchData(
        p(MapData(_alike(), _jitter, rng=True)), 4, remainder=True
    ),
    "repeated batches of a generator": lambda p: p(
        RepeatedData(BatchData(MapData(_alike(), _jitter, rng=True), 5, remainder=True), 2)
    ),
    "batches of a source that skips": lambda p: p(
        BatchData(
            MapData(LocallyShuffleData(MapData(_alike(), _no_sevens, on_error="skip"), 5),
                    _jitter, rng=True), 3, remainder=True)
    ),
    "maps of batches of a generator": lambda p: p(
        MapData(MapData(BatchData(MapData(_alike(), _jitter, rng=True), 4, remainder=True), _jitter,
                        rng=True), _jitter, rng=True)
    ),
    "batches of maps that skip": lambda p: p(
        BatchData(MapData(_alike(), _no_sevens, on_error="skip"), 3)
    ),
    "by shape": lambda p: BatchDataByShape(p(MapData(_generated(), _jitter, rng=True)), 3, "x"),
    "map data": lambda p: p(_generated()),
}  # fmt: skip


def _is_even(dp: Any) -> bool:
    return dp[1] % 2 == 0


def serial(ds: DataFlow) -> DataFlow:
    return ds


def processes(count: int) -> Wrap:
    return lambda ds: PrefetchData(ds, num_proc=count, backend="process")


def threads(count: int) -> Wrap:
    return lambda ds: PrefetchData(ds, num_proc=count, backend="thread")


@pytest.mark.parametrize("shape", SHAPES)
def test_laws_with_threads(shape: str) -> None:
    check_flow(lambda: SHAPES[shape](threads(2)))


@pytest.mark.parametrize("shape", sample(list(SHAPES), at_least=7))
def test_laws_with_processes(shape: str) -> None:
    check_flow(lambda: SHAPES[shape](processes(2)), stops=[1, 4])


# Pools of one and of three processes only for some: each has to be started.
CASES = [
    *((threads, count, shape) for count in range(4) for shape in SHAPES),
    *((processes, 2, shape) for shape in SHAPES),
    *((processes, n, shape) for n in (0, 1, 3) for shape in sample(list(SHAPES), at_least=4)),
]


@pytest.mark.parametrize(("backend", "workers", "shape"), CASES)
def test_same_as_serial_and_states_fit_any_number_of_workers(
    backend: Callable[[int], Wrap], workers: int, shape: str
) -> None:
    make = SHAPES[shape]
    for epoch in range(2):
        expected = list(make(serial).iterate(seed=5, epoch=epoch))
        found = list(make(backend(workers)).iterate(seed=5, epoch=epoch))
        assert len(found) == len(expected)
        assert all(map(same_datapoints, found, expected))
    one, other = (make(wrap).iterate(seed=5, epoch=1) for wrap in (serial, backend(workers)))
    for _ in itertools.islice(zip(one, other, strict=False), 3):
        pass
    assert one.state() == other.state()
    for state, wrap in ((one.state(), backend(3 - workers)), (other.state(), serial)):
        rest = list(make(wrap).iterate(state=state))
        assert all(map(same_datapoints, rest, expected[3:])), (shape, workers)
        assert len(rest) == len(expected) - 3


@settings(max_examples=scaled(200, at_least=10))
@given(
    size=st.integers(0, 70),
    workers=st.integers(0, 3),
    batch=st.integers(1, 9),
    prefetch=st.none() | st.integers(1, 20),
    stop=st.integers(0, 20),
    backend=st.sampled_from(["thread", "process"]),
    lifted=st.booleans(),
)
def test_any_sizes(
    size: int, workers: int, batch: int, prefetch: int | None, stop: int, backend: Any, lifted: bool
) -> None:
    def make(parallel: bool) -> DataFlow:
        ds: DataFlow = MapData(
            ShuffleData(DataFromArrays(np.arange(size))), lambda dp: (dp[0] * 2,)
        )
        batched = BatchData(ds, batch, remainder=True)
        if not parallel:
            return batched
        if lifted:
            return BatchData(
                PrefetchData(ds, prefetch, workers, backend=backend), batch, remainder=True
            )
        return PrefetchData(batched, prefetch, workers, backend=backend)

    expected = list(make(False).iterate(seed=1, epoch=0))
    iterator = make(True).iterate(seed=1, epoch=0)
    first = list(itertools.islice(iterator, stop))
    rest = list(make(True).iterate(state=iterator.state()))
    assert all(map(same_datapoints, [*first, *rest], expected))
    assert len(first) + len(rest) == len(expected)


def test_the_predecessors_classes_are_exact() -> None:
    expected = list(MapData(_arrays(), _add, rng=True).iterate(seed=2, epoch=0))
    for flow in (
        MultiProcessMapData(_arrays(), 2, _add, 10, rng=True),
        MultiThreadMapData(_arrays(), 2, _add, strict=True, rng=True),
    ):
        assert len(flow) == 30
        assert all(map(same_datapoints, flow.iterate(seed=2, epoch=0), expected))
    batches = MultiProcessMapAndBatchData(_arrays(), 2, _add, 7, rng=True)
    serial_batches = BatchData(MapData(_arrays(), _add, rng=True), 7)
    found = list(batches.iterate(seed=2, epoch=0))
    assert all(map(same_datapoints, found, serial_batches.iterate(seed=2, epoch=0)))
    assert len(found) == 4


@pytest.mark.parametrize("backend", ["thread", "process"])
def test_unordered_gives_everything_once(backend: Any) -> None:
    flow = PrefetchData(
        MapData(ShuffleData(DataFromArrays(np.arange(50))), lambda dp: dp),
        num_proc=2, ordered=False, backend=backend,
    )  # fmt: skip
    for stop in (0, 1, 13, 49, 50):
        iterator = flow.iterate(seed=0, epoch=0)
        first = [int(dp[0]) for dp in itertools.islice(iterator, stop)]
        state = iterator.state()
        rest = [int(dp[0]) for dp in flow.iterate(state=state)]
        assert sorted(first + rest) == list(range(50))
        following = [int(dp[0]) for dp in iterator]
        assert sorted(following) == sorted(rest)
