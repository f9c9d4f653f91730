"""Batches of what can only be read in order: workers map and stack, and nothing else changes."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from processes import wait_until
from shared_workers import shared_workers
from small_flows import generated as numbers
from towerpack import DataFlowError, MapError, StateError
from towerpack.dataflow import (
    BatchData,
    DataFlow,
    DataFromGenerator,
    LocallyShuffleData,
    MapData,
    MultiProcessMapAndBatchData,
    PrefetchData,
    RepeatedData,
)
from towerpack.dataflow._iteration_state import State, Stream
from towerpack.dataflow.parallel._slots import is_lent
from towerpack.dataflow.stages._base import WindowStream
from towerpack.dataflow.testing import same_datapoints


@pytest.fixture(scope="module", autouse=True)
def _shared_workers() -> Iterator[None]:
    with shared_workers():
        yield


BACKENDS = pytest.mark.parametrize("backend", ["process", "thread"])
REMAINDERS = pytest.mark.parametrize("remainder", [False, True])


def noisy(dp: Any, rng: np.random.Generator) -> Any:
    return (*dp, rng.random())


def large(dp: Any) -> Any:
    return (np.full((50, 1000), dp[0] % 251, np.uint8), dp[0])


def batches(size: int, batch: int, remainder: bool = True) -> BatchData:
    """Two maps that draw, and a batch."""
    maps = MapData(MapData(numbers(size), noisy, rng=True), noisy, rng=True)
    return BatchData(maps, batch, remainder=remainder)


def steps(flow: DataFlow, **start: Any) -> list[tuple[Any, Any, int]]:
    """What each call of `next` gives, the state after it, and what was skipped by then."""
    iterator = flow.iterate(**start) if start else flow.iterate(seed=3, epoch=0)
    found: list[tuple[Any, Any, int]] = [(None, iterator.state(), iterator.skipped)]
    for dp in iterator:
        found.append((dp, iterator.state(), iterator.skipped))
    assert next(iterator, None) is None
    found.append((None, iterator.state(), iterator.skipped))
    return found


# ------------------------------------------------------------------ who does what


@BACKENDS
def test_workers_make_batches_where_the_consumer_gets_them(backend: Any) -> None:
    def tell(dp: Any) -> Any:
        return (*large(dp), os.getpid(), threading.get_ident())

    flow = BatchData(MapData(numbers(240), tell), 8)
    for ahead in (
        PrefetchData(flow, num_proc=2, backend=backend),
        BatchData(PrefetchData(flow.ds, num_proc=2, backend=backend), 8),
        RepeatedData(PrefetchData(flow, num_proc=2, backend=backend), 2),
    ):
        for images, labels, pids, threads in ahead.iterate(seed=0):
            assert (images[:, 0, 0] == labels).all()
            assert len(set(zip(pids.tolist(), threads.tolist(), strict=True))) == 1
            assert (int(pids[0]) == os.getpid()) is (backend == "thread")
            assert threads[0] != threading.get_ident()
            # The first ones show how large slots have to be, and threads have none to grow.
            assert is_lent(images) or (backend == "thread" and labels[0] < 160)


@pytest.mark.parametrize("of_batches", [False, True])
def test_maps_get_no_memory_that_is_used_again(of_batches: bool) -> None:
    """What a map keeps of its own results, or of batches, stays as it is."""
    kept: list[Any] = []

    def keeping(dp: Any) -> Any:
        kept.append(dp[0] if of_batches else large(dp)[0])
        return kept[-1], all((one == one.flat[0]).all() for one in kept), os.getpid()

    flow: DataFlow = MapData(numbers(60), lambda dp: large([dp[0] // 4]) if of_batches else dp)
    flow = (
        MapData(BatchData(flow, 4), keeping) if of_batches else BatchData(MapData(flow, keeping), 4)
    )
    for index, (images, intact, pid) in enumerate(PrefetchData(flow, num_proc=1).iterate(seed=0)):
        assert np.all(intact) and np.all(pid != os.getpid())
        assert images[-1, 0, 0] == (index if of_batches else 4 * index + 3)
        images[:1] = 255


@pytest.mark.parametrize(
    "make",
    [
        lambda ds: BatchData(MapData(MapData(ds, noisy, rng=True), refuses, on_error="skip"), 4),
        lambda ds: BatchData(MapData(MapData(ds, refuses, on_error="skip"), noisy, rng=True), 4),
        lambda ds: BatchData(BatchData(MapData(ds, noisy, rng=True), 3), 2),
        lambda ds: Reversed(MapData(ds, noisy, rng=True), 4),
        lambda ds: MapData(BatchData(MapData(ds, noisy, rng=True), 4), odd, on_error="skip"),
        lambda ds: MapData(BatchData(MapData(ds, refuses, on_error="skip"), 4), noisy, rng=True),
        lambda ds: BatchData(MapData(ds, lambda dp: {"a": dp[0], "b": b"x" * dp[0]}), 4),
    ],
)
def test_other_batches_are_the_same_too(make: Callable[[DataFlow], DataFlow]) -> None:
    expected = steps(make(numbers(23)))
    assert len(expected) > 4
    for backend in ("thread", "process"):
        ahead: Any = backend
        found = steps(PrefetchData(make(numbers(23)), num_proc=2, backend=ahead))
        assert same_datapoints(found, expected)


def odd(dp: Any) -> Any:
    if dp[0][0] % 3 == 1:
        raise ValueError("a bad one")
    return dp


def refuses(dp: Any) -> Any:
    if dp[0] % 5 == 2:
        raise ValueError("a bad one")
    return dp


class Reversed(BatchData):
    """Has a stream of its own."""

    def open(self, place: Any, epoch: int, state: State) -> Stream:
        def backwards(_: int, datapoints: list[Any]) -> list[Any]:
            return [self.collate(datapoints[::-1])]

        stream = super().open(place, epoch, state)
        assert isinstance(stream, WindowStream)
        stream._transform = backwards
        return stream


# ------------------------------------------------------------------ states


@pytest.mark.parametrize("above", [0, 2])
@REMAINDERS
@BACKENDS
@pytest.mark.parametrize(("size", "batch"), [(2, 3), (12, 3), (23, 4), (600, 300)])
def test_states_are_those_of_the_serial_stages(
    size: int, batch: int, backend: Any, remainder: bool, above: int
) -> None:
    flow: DataFlow = batches(size, batch, remainder)
    for _ in range(above):
        flow = MapData(flow, noisy, rng=True)
    expected = steps(flow)
    ahead = PrefetchData(flow, num_proc=2, backend=backend)
    assert same_datapoints(steps(ahead), expected)
    for index in sorted({0, 1, len(expected) // 2, len(expected) - 1}):
        state = expected[index][1]
        assert same_datapoints(steps(ahead, state=state), steps(flow, state=state))


@pytest.mark.parametrize(
    ("way", "value"),
    [("count", 5), ("bad", 1), ("inner", 5), ("inner/window", -1), ("inner/window", "x"),
     ("inner/inner", {}), ("inner/inner/count", 9.5), ("inner/inner/count", 5),
     ("inner/inner/bad", 1), ("inner/inner/inner", 5), ("inner/inner/inner/count", 7)],
)  # fmt: skip
def test_damaged_states_are_refused(way: str, value: Any) -> None:
    """A state after one batch, with another value in it."""
    flow = MapData(batches(20, 4), noisy, rng=True)
    with PrefetchData(flow, num_proc=1, backend="thread").iterate(seed=0) as iterator:
        next(iterator)
        state = part = iterator.state()
    *path, last = ["at", *way.split("/")]
    for key in path:
        part = part[key]
    part[last] = value
    with pytest.raises(StateError):
        next(PrefetchData(flow, num_proc=1, backend="thread").iterate(state=state))


@REMAINDERS
@BACKENDS
@pytest.mark.parametrize("bad", [{0, 8}, {21, 22}, set(range(23))])
def test_what_the_source_left_out_is_counted(bad: set[int], backend: Any, remainder: bool) -> None:
    def good(dp: Any) -> Any:
        if dp[0] in bad:
            raise ValueError("a bad one")
        return dp

    # A window of one shuffles nothing, and keeps the maps on both sides apart.
    source = LocallyShuffleData(MapData(numbers(23), good, on_error="skip"), 1)
    flow = BatchData(MapData(source, noisy, rng=True), 4, remainder=remainder)
    expected = steps(flow)
    assert expected[-1][2] == len(bad)
    ahead = PrefetchData(flow, num_proc=2, backend=backend)
    assert same_datapoints(steps(ahead), expected)
    state = expected[len(expected) // 2][1]
    assert same_datapoints(steps(ahead, state=state), steps(flow, state=state))


# ------------------------------------------------------------------ failures


@BACKENDS
@pytest.mark.parametrize("broken_at", [0, 7, 8])
def test_a_source_that_fails_within_a_batch(backend: Any, broken_at: int) -> None:
    broken = [2]  # how often it fails

    def source() -> Iterator[Any]:
        for i in range(19):
            if i == broken_at and broken[0]:
                broken[0] -= 1
                raise OSError("cannot read")
            yield (i,)

    maps = MapData(DataFromGenerator(source), noisy, rng=True)
    flow = BatchData(maps, 4, remainder=True)

    def outcome(ds: DataFlow) -> list[Any]:
        broken[0] = 2
        iterator = ds.iterate(seed=1, epoch=0)
        found: list[Any] = []
        while True:
            try:
                found.append(next(iterator))
            except DataFlowError as error:
                found.append(str(error.what))
            except StopIteration:
                return found
            found.append(iterator.state())

    assert sum(isinstance(one, str) for one in outcome(flow)) == 2
    ahead = PrefetchData(flow, num_proc=2, backend=backend)
    assert same_datapoints(outcome(ahead), outcome(flow))


def test_a_source_that_fails_while_workers_end_what_nobody_waits_for() -> None:
    """Then nothing is issued at first: its error must wait for what was read before it."""
    broken = threading.Event()
    gate = threading.Event()

    def source() -> Iterator[Any]:
        for i in range(9):
            if i == 5 and broken.is_set():
                raise OSError("cannot read")
            yield (i,)

    def slow(dp: Any) -> Any:
        if dp[0]:
            gate.wait(5)
        return dp

    flow = PrefetchData(MapData(DataFromGenerator(source), slow), num_proc=1, backend="thread")
    left = flow.iterate(seed=0)
    assert next(left) == (0,)
    left.close()
    broken.set()
    threading.Timer(0.3, gate.set).start()
    found: list[int] = []
    with pytest.raises(DataFlowError, match="cannot read"):
        for dp in flow.iterate(seed=0):
            found.append(dp[0])
    assert found == [0, 1, 2, 3, 4]


@BACKENDS
@pytest.mark.parametrize("of_batches", [False, True])
def test_a_map_that_fails_names_the_datapoint(
    backend: Any, of_batches: bool, tmp_path: Path
) -> None:
    mended = tmp_path / "mended"

    def fails(dp: Any) -> Any:
        if np.ravel(dp[0])[0] == (16 if of_batches else 19) and not mended.exists():
            raise KeyError("no such thing")
        return dp

    flow = BatchData(MapData(numbers(50), noisy if of_batches else fails, rng=of_batches), 8)
    ds = MapData(flow, fails) if of_batches else flow
    iterators = [one.iterate(seed=0) for one in (ds, PrefetchData(ds, 6, 2, backend=backend))]
    for iterator in iterators:
        assert [next(iterator)[0][0] for _ in range(2)] == [0, 8]
        for _ in range(2):
            with pytest.raises(MapError, match=f"datapoint {2 if of_batches else 19} of epoch 0"):
                next(iterator)
    serial, ahead = iterators
    assert ahead.state() == serial.state()
    mended.touch()
    assert same_datapoints(list(ahead), list(serial))


def test_an_error_in_a_unit_of_several_batches() -> None:
    """What is cheap is done several batches at a time; those before the error are handed on."""
    bad: list[int] = []
    flow = MapData(numbers(600), lambda dp: dp if dp[0] not in bad else dp[1])
    ahead = PrefetchData(BatchData(flow, 2), num_proc=1, backend="thread")
    for where in (301, 430, 517):
        bad[:] = [where]
        iterator = ahead.iterate(seed=0, epoch=0)
        for _ in range(where // 2):
            next(iterator)
        with pytest.raises(MapError, match=f"datapoint {where} of"):
            next(iterator)
        bad.clear()
        assert [int(dp[0][0]) for dp in iterator] == list(range(where - where % 2, 600, 2))


def test_a_worker_that_is_killed_within_a_batch(tmp_path: Path) -> None:
    def dies(dp: Any, rng: np.random.Generator) -> Any:
        died = tmp_path / f"died at {dp[0]}"
        if dp[0] in (21, 38) and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return (np.full(5000, dp[0]), rng.random())

    flow = BatchData(MapData(numbers(63), dies, rng=True), 6, remainder=True)
    ahead = PrefetchData(flow, num_proc=2, on_worker_death="restart")
    found = list(ahead.iterate(seed=0, epoch=0))
    assert len(list(tmp_path.iterdir())) == 2
    assert same_datapoints(list(ahead.iterate(seed=0, epoch=0)), found)
    assert np.concatenate([dp[0][:, 0] for dp in found]).tolist() == list(range(63))


# ------------------------------------------------------------------ the rest


def test_num_prefetch_counts_batches() -> None:
    made: list[int] = []
    maps = MapData(numbers(400), lambda dp: made.append(1) or dp)
    flow = PrefetchData(BatchData(maps, 4), 2, 1, backend="thread")
    iterator = flow.iterate(seed=0)
    next(iterator)
    assert wait_until(lambda: len(made) >= (1 + 2) * 4, 5)
    time.sleep(0.2)
    assert len(made) <= (1 + 1 + 2) * 4, "one unit of one batch, and another one, of two"
    iterator.close()


def test_a_batch_does_not_wait_for_what_comes_after_it() -> None:
    gate = threading.Event()

    def live() -> Iterator[Any]:
        yield from ((i,) for i in range(9))
        gate.wait()
        yield from ((i,) for i in range(9, 12))

    flow = MultiProcessMapAndBatchData(
        DataFromGenerator(live), 1, lambda dp: (dp[0] * 2,), 4, remainder=True
    )
    iterator = flow.iterate(seed=0)
    assert [next(iterator)[0].tolist() for _ in range(2)] == [[0, 2, 4, 6], [8, 10, 12, 14]]
    gate.set()
    assert [dp[0].tolist() for dp in iterator] == [[16, 18, 20, 22]]


@BACKENDS
def test_passes_that_are_left_early(backend: Any) -> None:
    ended: list[int] = []

    def source() -> Iterator[Any]:
        try:
            for i in range(1000):
                yield (i,)
        finally:
            ended.append(1)

    flow = BatchData(MapData(DataFromGenerator(source), noisy, rng=True), 8)
    for _ in range(2):
        with PrefetchData(flow, num_proc=2, backend=backend).iterate(seed=2) as iterator:
            next(iterator)
    assert wait_until(lambda: len(ended) == 2, 5), "readers end, and close the source"
