"""Worker processes: how they start, grow, hang and die, and that nothing is left of them."""

from __future__ import annotations

import gc
import itertools
import logging
import os
import re
import signal
import sys
import time
import types
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from processes import children_of, memory_files, wait_until
from small_flows import numbers
from towerpack import DataFlowError, WorkerError
from towerpack.dataflow import BatchData, DataFromGenerator, DataFromList, MapData, PrefetchData
from towerpack.dataflow.testing import same_datapoints

BACKENDS = pytest.mark.parametrize("backend", ["process", "thread"])


@pytest.fixture(scope="module", autouse=True)
def _nothing_is_left() -> Iterator[None]:
    gc.collect()
    workers, files = set(children_of(os.getpid())), memory_files()
    yield
    gc.collect()
    assert wait_until(lambda: set(children_of(os.getpid())) <= workers, 5), "workers are left"
    assert wait_until(lambda: memory_files() <= files, 5), "memory files are left"


def own_workers() -> set[int]:
    return set(children_of(os.getpid()))


def test_workers_see_no_gpus_unless_they_should(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    visible = MapData(DataFromList([(0,)]), lambda _: (os.environ["CUDA_VISIBLE_DEVICES"],))
    assert list(PrefetchData(visible, 1)) == [("-1",)]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"
    monkeypatch.setenv("TOWERPACK_WORKER_GPUS", "1")
    assert list(PrefetchData(visible, 1)) == [("0",)]


def test_results_of_very_different_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was stacked in a slot before there was no room in it is not lost."""
    monkeypatch.setattr("towerpack.dataflow.parallel._slots._SMALLEST", 1 << 13)

    def odd(dp: Any) -> Any:
        return (np.full(10 ** (dp[0] % 6), dp[0]), "x" * 10 ** (dp[0] % 5))

    def growing(dp: Any) -> Any:
        return np.full(100, dp[0]), np.full(10 * 2 ** (dp[0] // 24), dp[0]), np.full(99, dp[0])

    for flow in (MapData(numbers(21), odd), BatchData(MapData(numbers(240), growing), 4)):
        ahead = PrefetchData(flow, num_proc=1)
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
        with pytest.raises(DataFlowError, match=r"memory of .* cannot be reserved"):
            found.extend(int(dp[1]) for dp in iterator)
    iterator.close()


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
    assert wait_until(lambda: own_workers() <= before, 2)


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
    with pytest.raises(WorkerError, match=r"(?s)SIGKILL at position.*memory probably ran out"):
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
    def open_files() -> Counter[str]:
        files = map(os.path.realpath, Path("/proc/self/fd").iterdir())
        return Counter(file for file in files if "towerpack-slots" not in file)  # it varies

    def opened() -> int:
        """Only those of this test: what earlier ones left may be closed meanwhile."""
        return (open_files() - before).total()

    path = tmp_path / "deaths"
    flow = MapData(numbers(60), lambda dp: die(dp, str(path)))
    flow = PrefetchData(flow, num_proc=1, on_worker_death="restart")
    gc.collect()  # what other tests have left
    before = open_files()
    assert [int(dp[0]) for dp in flow] == list(range(60))
    with_workers = opened()
    for _ in range(2):
        path.unlink()
        assert [int(dp[0]) for dp in flow] == list(range(60))
    assert opened() == with_workers
    del flow
    gc.collect()
    assert opened() == 0

    def fails(fds: Any) -> Any:
        raise OSError("cannot start")

    monkeypatch.setattr("towerpack.dataflow.parallel._process_pool.start_fresh", fails)
    flow = PrefetchData(numbers(6), num_proc=2, backend="process")
    with pytest.raises(OSError, match="cannot start"):
        list(flow)
    del flow
    gc.collect()
    assert opened() == 0


def leave(dp: Any) -> Any:
    os._exit(3)


def crash(dp: Any) -> Any:
    import ctypes

    return ctypes.string_at(0)


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (leave, r"ended with status 3 at position"),
        (crash, r"(?s)SIGSEGV.*Its last output.*in crash"),
    ],
)
def test_work_that_kills_every_worker_is_an_error(end: Any, told: str) -> None:
    flow = MapData(numbers(10), lambda dp: end(dp) if dp[0] == 5 else dp)
    found: list[int] = []
    with pytest.raises(WorkerError, match=told):
        found.extend(int(dp[0]) for dp in PrefetchData(flow, num_proc=1, on_worker_death="restart"))
    assert found == list(range(len(found)))


@pytest.mark.parametrize("deaths", [0, 1, 3])
def test_so_many_workers_are_replaced_and_no_more(tmp_path: Path, deaths: int) -> None:
    def dies_once(dp: Any) -> Any:
        mark = tmp_path / str(dp[0])
        if dp[0] % 3 == 2 and dp[0] < 3 * deaths and not mark.exists():
            mark.touch()
            os._exit(3)
        return dp

    def read(most: int) -> list[int]:
        for mark in tmp_path.iterdir():
            mark.unlink()
        options: Any = {"on_worker_death": "restart", "max_restarts": most}
        flow = PrefetchData(MapData(numbers(12), dies_once), num_proc=1, **options)
        return [int(dp[0]) for dp in flow]

    assert read(deaths) == list(range(12))
    if deaths:
        with pytest.raises(WorkerError, match="ended with status 3"):
            read(deaths - 1)


@BACKENDS
def test_stalls_are_reported(
    backend: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("towerpack"), "propagate", True)
    monkeypatch.setattr("towerpack.dataflow.parallel._engine._POLL_S", 0.05)

    def hangs(dp: Any) -> Any:
        time.sleep(1.2 if dp[0] in (1, 3) else 0)
        return dp

    flow = PrefetchData(MapData(numbers(5), hangs), num_proc=1, stall_s=0.8, backend=backend)
    with caplog.at_level(logging.WARNING, logger="towerpack"):
        assert len(list(flow)) == 5
    # Once in each time that long, not with each look.
    reports = [record.getMessage() for record in caplog.records]
    places = [re.findall(r"position (\d+)", text)[:1] for text in reports]
    assert places == [["1"], ["3"]], reports
    assert all("hangs" in text for text in reports)


class Unreadable:
    """Pickles, and does not unpickle."""

    def __reduce__(self) -> Any:
        return float, ("not a number",)


@pytest.mark.parametrize(
    "source",
    [lambda n: DataFromList([*range(n)]), lambda n: DataFromGenerator(lambda: iter(range(n)))],
)
def test_what_does_not_unpickle_is_an_error_each_time(source: Any) -> None:
    bad = MapData(source(9), lambda i: Unreadable() if i == 4 else (i, np.zeros(1000)))
    with PrefetchData(bad, num_proc=1, backend="process").iterate(seed=0) as iterator:
        found: list[int] = []
        for _ in range(3):
            with pytest.raises(DataFlowError, match="cannot be unpickled: ValueError"):
                found.extend(dp[0] for dp in iterator)
        assert found == list(range(len(found))) and len(found) <= 4
        state = iterator.state()
    good = MapData(source(9), lambda i: (i, np.zeros(1000)))
    rest = PrefetchData(good, num_proc=1, backend="process").iterate(state=state)
    assert [dp[0] for dp in rest] == list(range(len(found), 9))
