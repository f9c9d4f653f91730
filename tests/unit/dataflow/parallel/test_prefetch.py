"""What `PrefetchData` does besides the laws: memory, errors, workers and their ends."""

from __future__ import annotations

import gc
import itertools
import logging
import os
import pickle
import signal
import sys
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import cloudpickle
import numpy as np
import pytest

from processes import children_of, memory_files, wait_until
from small_flows import numbers
from towerpack import ConfigError, DataFlowError, MapError, WorkerError
from towerpack.dataflow import (
    BatchData,
    ConcatData,
    DataFromArrays,
    DataFromGenerator,
    DataFromList,
    MapData,
    MultiProcessMapAndBatchData,
    MultiProcessMapData,
    MultiThreadRunner,
    PrefetchData,
    PrefetchDataZMQ,
    RepeatedData,
    ShuffleData,
)
from towerpack.dataflow._flow import Place, compile_flow
from towerpack.dataflow.parallel import is_lent
from towerpack.dataflow.testing import same_datapoints

BACKENDS = pytest.mark.parametrize("backend", ["process", "thread"])


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    gc.collect()
    workers, files = set(children_of(os.getpid())), memory_files()
    yield
    gc.collect()
    assert wait_until(lambda: set(children_of(os.getpid())) <= workers, 5), "workers are left"
    assert wait_until(lambda: memory_files() <= files, 5), "memory files are left"


def large(dp: Any) -> Any:
    return (np.full((50, 1000), dp[0] % 251, np.uint8), dp[0])


def own_workers() -> set[int]:
    return set(children_of(os.getpid()))


# ------------------------------------------------------------------ memory


@BACKENDS
def test_what_is_kept_never_changes(backend: Any) -> None:
    flow = PrefetchData(BatchData(MapData(numbers(400), large), 4), 3, 2, backend=backend)
    kept: list[Any] = []
    for index, (images, labels) in enumerate(flow.iterate(seed=0)):
        assert (images[:, 0, 0] == labels % 251).all()
        if index % 3 == 0:
            kept.append((images[1:3, ::2], labels[1:3]))  # views alone keep a slot
        images[:] = 255  # it is ours
    assert index == 99
    changed = [bool((images != 255).any()) for images, _ in kept]
    assert not any(changed)


def test_memory_is_used_again() -> None:
    flow = PrefetchData(BatchData(MapData(numbers(400), large), 4), 3, 2)
    places = set()
    for images, _ in flow.iterate(seed=0):
        assert images.ctypes.data % 64 == 0
        places.add(images.ctypes.data)
    assert len(places) < 50
    del images


def test_a_consumer_that_keeps_everything_is_given_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("towerpack.dataflow.parallel._pool._MOST_LENT", 5)
    flow = PrefetchData(BatchData(MapData(numbers(400), large), 2), num_proc=2)
    kept = list(flow.iterate(seed=0, epoch=0))
    assert sum(is_lent(images) for images, _ in kept) == 5
    assert all((images[:, 0, 0] == labels % 251).all() for images, labels in kept)


def test_copies_on_request() -> None:
    flow = PrefetchData(BatchData(MapData(numbers(8), large), 4), num_proc=1, copy=True)
    assert not any(is_lent(images) for images, _ in flow.iterate(seed=0))


def test_results_of_very_different_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was stacked in a slot before there was no room in it is not lost."""
    monkeypatch.setattr("towerpack.dataflow.parallel._memory._SMALLEST", 1 << 13)

    def odd(dp: Any) -> Any:
        return (np.full(10 ** (dp[0] % 7), dp[0]), "x" * 10 ** (dp[0] % 6))

    def growing(dp: Any) -> Any:
        return np.full(100, dp[0]), np.full(10 * 2 ** (dp[0] // 24), dp[0]), np.full(99, dp[0])

    for flow in (MapData(numbers(21), odd), BatchData(MapData(numbers(240), growing), 4)):
        ahead = PrefetchData(flow, num_proc=2)
        assert same_datapoints(list(ahead.iterate(seed=0)), list(flow.iterate(seed=0)))


def test_no_memory_for_a_large_result_is_an_error() -> None:
    def full(fd: int, offset: int, nbytes: int) -> None:
        raise OSError(28, "No space left on device")

    def large(dp: Any) -> Any:
        os.posix_fallocate = full  # in the worker
        return (np.zeros(10**6 if dp[0] == 9 else 10), dp[0])

    flow = MapData(numbers(20), large)
    iterator = PrefetchData(flow, num_proc=1).iterate(seed=0)
    for _ in range(2):
        found: list[int] = []
        with pytest.raises(DataFlowError, match="no memory"):
            found.extend(int(dp[1]) for dp in iterator)
    iterator.close()


# ------------------------------------------------------------------ workers


def test_workers_stay_from_pass_to_pass_and_end_with_the_flow() -> None:
    before = own_workers()
    flow = PrefetchData(BatchData(numbers(100), 10), num_proc=2, backend="process")
    first = [batch[0][0] for batch in flow.iterate(seed=0)]
    workers = own_workers() - before
    assert len(workers) == 2
    for seed in (0, 0, 1):  # another seed is another job for the same workers
        for _ in itertools.islice(flow.iterate(seed=seed), 2):
            pass  # left early
    assert [batch[0][0] for batch in flow.iterate(seed=0)] == first
    assert own_workers() - before == workers
    del flow
    assert wait_until(lambda: own_workers() == before, 2)


def test_threads_where_there_are_only_rows_to_move() -> None:
    """Unless something is asked for that threads do not have; and the most workers count."""
    rows = DataFromArrays(np.arange(300).reshape(100, 3), np.arange(100))
    moved = BatchData(RepeatedData(ShuffleData(ConcatData([rows, rows])), 2), 10)
    objects = DataFromArrays(np.array([str(i) for i in range(100)], object))
    for flow, options, backend in (
        (moved, {}, "thread"),
        (moved, {"backend": "process"}, "process"),
        (moved, {"on_worker_death": "restart"}, "process"),
        (moved, {"start": "fork"}, "process"),
        (MapData(moved, lambda dp: dp), {}, "process"),
        (BatchData(objects, 10), {}, "process"),
    ):
        ahead = PrefetchData(flow, num_proc=2, **cast("Any", options))
        assert ahead._options(ahead, compile_flow(flow, Place(0))).backend == backend
    before = own_workers()
    inner = MultiProcessMapData(moved, 3, lambda dp: dp)
    assert PrefetchDataZMQ(inner, 1)._options(BatchData(inner, 2)).workers == 3
    for ordered in (True, False):
        found = list(PrefetchData(moved, num_proc=2, ordered=ordered).iterate(seed=0))
        assert not ordered or same_datapoints(found, list(moved.iterate(seed=0)))
    assert own_workers() == before


def test_no_worker_for_zero() -> None:
    before = own_workers()
    names = []
    flow = PrefetchData(
        MapData(numbers(5), lambda dp: names.append(threading.current_thread().name) or dp),
        num_proc=0,
    )
    assert len(list(flow)) == 5
    assert set(names) == {"MainThread"}
    assert own_workers() == before


def test_batches_are_made_in_workers_and_maps_above_in_the_consumer() -> None:
    flow = BatchData(MultiProcessMapData(numbers(64), 2, lambda dp: (dp[0], os.getpid())), 8)
    for _, pids, own in MapData(RepeatedData(flow, 2), lambda dp: (*dp, os.getpid())):
        assert len(set(pids.tolist())) == 1, "one worker made the whole batch"
        assert pids[0] != os.getpid() == own


def test_prefetching_crosses_the_border_of_passes() -> None:
    made: list[int] = []
    flow = MultiThreadRunner(
        lambda: BatchData(MapData(numbers(8), lambda dp: made.append(1) or dp), 2), 8, 1
    )
    iterator = RepeatedData(flow, -1).iterate(seed=0)
    for _ in range(3):
        next(iterator)
    assert wait_until(lambda: len(made) > 8, 5), "the next pass has begun"
    iterator.close()


def test_a_flow_with_workers_pickles() -> None:
    flow = PrefetchData(numbers(5), num_proc=1)
    assert len(list(flow)) == 5
    copy = pickle.loads(cloudpickle.dumps(flow))
    assert [dp[0] for dp in copy] == [0, 1, 2, 3, 4]


def test_workers_do_not_draw_the_same_from_global_generators() -> None:
    def draw(dp: Any) -> Any:
        import random

        return (random.random(), np.random.random())

    flow = PrefetchData(BatchData(MapData(numbers(64), draw), 8), num_proc=2)
    for column in zip(*flow.iterate(seed=0), strict=True):
        assert len(np.unique(np.concatenate(column))) == 64


# ------------------------------------------------------------------ failures


@BACKENDS
def test_errors_come_after_what_was_before_them(backend: Any, tmp_path: Path) -> None:
    mended = tmp_path / "mended"

    def fails(dp: Any) -> Any:
        if dp[0] == 37 and not mended.exists():
            raise KeyError("no such thing")
        return dp

    flow = PrefetchData(MapData(numbers(60), fails), 40, 2, backend=backend)
    iterator = flow.iterate(seed=0)
    assert [next(iterator)[0] for _ in range(37)] == list(range(37))
    state = iterator.state()
    for _ in range(2):
        with pytest.raises(MapError, match="datapoint 37 of epoch 0") as caught:
            next(iterator)
        assert isinstance(caught.value.__cause__, KeyError)
        assert backend == "thread" or "in fails" in str(caught.value), "the worker's traceback"
    assert iterator.state() == state
    mended.touch()
    assert [dp[0] for dp in iterator] == list(range(37, 60))


@BACKENDS
def test_errors_of_what_is_read_in_order(backend: Any, tmp_path: Path) -> None:
    mended = tmp_path / "mended"

    def source() -> Iterator[Any]:
        for i in range(30):
            if i == 20 and not mended.exists():
                raise OSError("cannot read")
            yield (i,)

    def fails(dp: Any) -> Any:
        if dp[0] == 7 and not mended.exists():
            raise KeyError("no such thing")
        return dp

    flow = PrefetchData(MapData(DataFromGenerator(source), fails), num_proc=2, backend=backend)
    iterator = flow.iterate(seed=0)
    assert [next(iterator)[0] for _ in range(7)] == list(range(7))
    with pytest.raises(MapError, match="datapoint 7"):
        next(iterator)
    with pytest.raises(MapError, match="datapoint 7"):
        next(iterator)
    mended.touch()
    found = [next(iterator)[0] for _ in range(13)]
    assert found == list(range(7, 20))
    rest: list[int] = []
    while len(rest) < 10:
        try:
            rest.extend(dp[0] for dp in itertools.islice(iterator, 10))
        except DataFlowError as error:  # it was read before it was mended
            assert "cannot read" in str(error)
    assert rest == list(range(20, 30))


def test_a_function_that_does_not_pickle_is_named() -> None:
    lock = threading.Lock()

    def guarded(dp: Any) -> Any:
        with lock:
            return dp

    flow = PrefetchData(MapData(numbers(8), guarded), num_proc=1)
    with pytest.raises(ConfigError, match=r"(?s)lock of .*guarded.*MapData\(guarded\)"):
        next(flow.iterate(seed=0))
    assert len(list(PrefetchData(MapData(numbers(8), guarded), num_proc=1, backend="thread"))) == 8


def test_an_open_file_is_not_sent(tmp_path: Path) -> None:
    (tmp_path / "numbers.txt").write_text("0\n1\n2\n")
    with (tmp_path / "numbers.txt").open() as file:
        ds = PrefetchData(MapData(numbers(3), lambda dp: (file.readline(),)), num_proc=1)
        words = r"(?s)the open file '.*numbers.txt': open it where.*file of .*<lambda>"
        with pytest.raises(ConfigError, match=words):
            next(ds.iterate())

        def says(dp: Any) -> Any:
            print("said", file=sys.stderr)
            return dp

        assert len(list(PrefetchData(MapData(numbers(3), says), num_proc=1))) == 3


def test_a_result_that_does_not_pickle_is_named() -> None:
    flow = MapData(numbers(8), lambda dp: (dp[0], threading.Lock()))
    with pytest.raises(DataFlowError, match=r"(?s)position.*lock"):
        list(PrefetchData(flow, num_proc=1))


def test_a_pipeline_that_does_not_load_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = types.ModuleType("only_here")
    exec("def f(dp): return dp", module.__dict__)
    monkeypatch.setitem(sys.modules, "only_here", module)
    with pytest.raises(DataFlowError, match=r"(?s)cannot load the pipeline.*only_here"):
        list(PrefetchData(MapData(numbers(3), module.f), num_proc=1))


def die(dp: Any, path: str) -> Any:
    """Ends its process, once for each byte that is missing in a file."""
    if dp[0] == 21:
        with open(path, "ab") as file:
            file.write(b"x")
        if os.path.getsize(path) < 2:
            os.kill(os.getpid(), signal.SIGKILL)
    return dp


def test_a_worker_that_dies_is_an_error_that_says_how(tmp_path: Path) -> None:
    path = str(tmp_path / "deaths")
    flow = PrefetchData(MapData(numbers(60), lambda dp: die(dp, path)), num_proc=2)
    iterator = flow.iterate(seed=0)
    before = []
    with pytest.raises(WorkerError, match=r"(?s)SIGKILL at position.*out of memory"):
        for dp in iterator:
            before.append(int(dp[0]))
    assert before == list(range(len(before)))
    assert len(before) <= 21
    rest = [int(dp[0]) for dp in iterator]  # the next one tries again
    assert before + rest == list(range(60))


def test_opencv_has_one_thread_from_the_first_datapoint_on() -> None:
    pytest.importorskip("cv2")

    def threads(dp: Any) -> Any:
        import cv2

        return (os.getpid(), cv2.getNumThreads())

    found = list(PrefetchData(MapData(numbers(40), threads), num_proc=1))
    assert {count for _, count in found} == {1}


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads /proc")
def test_nothing_stays_open_of_workers_that_died_or_did_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    path = tmp_path / "deaths"
    flow = MapData(numbers(60), lambda dp: die(dp, str(path)))
    flow = PrefetchData(flow, num_proc=2, on_worker_death="restart")
    before = open_files()
    assert [int(dp[0]) for dp in flow] == list(range(60))
    with_workers = open_files()
    path.unlink()
    assert [int(dp[0]) for dp in flow] == list(range(60))
    assert open_files() == with_workers
    del flow
    gc.collect()
    assert open_files() == before

    def fails(fds: Any) -> Any:
        raise OSError("cannot start")

    monkeypatch.setattr("towerpack.dataflow.parallel._process.start_fresh", fails)
    flow = PrefetchData(MapData(numbers(6), large), num_proc=2)
    with pytest.raises(OSError, match="cannot start"):
        list(flow)
    del flow
    gc.collect()
    assert open_files() == before


def test_work_that_kills_every_worker_is_an_error() -> None:
    flow = MapData(numbers(10), lambda dp: os._exit(3) if dp[0] == 5 else dp)
    flow = PrefetchData(flow, num_proc=1, on_worker_death="restart")
    found = []
    with pytest.raises(WorkerError, match=r"ended with status 3 at position"):
        for dp in flow:
            found.append(int(dp[0]))
    assert found == list(range(len(found)))


def test_a_crash_tells_its_last_words() -> None:
    def crash(dp: Any) -> Any:
        import ctypes

        return ctypes.string_at(0)

    with pytest.raises(WorkerError, match=r"(?s)SIGSEGV.*last words.*in crash"):
        list(PrefetchData(MapData(numbers(3), crash), num_proc=1))


@BACKENDS
def test_stalls_are_reported(
    backend: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("towerpack"), "propagate", True)

    def hangs(dp: Any) -> Any:
        time.sleep(1.0 if dp[0] == 3 else 0)
        return dp

    flow = PrefetchData(MapData(numbers(5), hangs), num_proc=1, stall_s=0.2, backend=backend)
    with caplog.at_level(logging.WARNING, logger="towerpack"):
        assert len(list(flow)) == 5
    reports = [record.getMessage() for record in caplog.records]
    assert any("position 3" in text and "hangs" in text for text in reports), reports


# ------------------------------------------------------------------ arguments


@pytest.mark.parametrize(
    "wrong",
    [{"num_proc": -1}, {"num_proc": "2"}, {"num_proc": 1.5}, {"num_prefetch": 0},
     {"num_prefetch": 2.5}, {"backend": "gpu"}, {"on_worker_death": "ignore"}, {"stall_s": 0},
     {"start": "spawn"}, {"max_restarts": -1}, {"max_restarts": 1.5}],
)  # fmt: skip
def test_arguments_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        PrefetchData(numbers(3), **wrong)


def test_a_buffer_smaller_than_a_batch_is_refused() -> None:
    with pytest.raises(ConfigError, match="holds no batch"):
        MultiProcessMapAndBatchData(numbers(9), 1, lambda dp: dp, 8, 4)


def test_it_has_the_length_and_name_of_what_it_wraps() -> None:
    flow = PrefetchData(DataFromList([(1,), (2,)]), num_proc=2)
    assert len(flow) == 2
    assert str(flow) == "DataFromList(2) > PrefetchData(2 workers)"
    assert flow.iterate(seed=0).state()["flow"] == "DataFromList(2)"
    assert flow.plan(seed=0).get(1) == (2,)
    with pytest.raises(TypeError):
        len(PrefetchData(RepeatedData(flow, -1), num_proc=1))
