"""What can go wrong with workers: nothing hangs, nothing is lost, nothing stays behind."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from processes import children_of, communicate, is_alive, memory_files, stopwatch, wait_until
from scaling import sample, scaled
from towerpack.dataflow import (
    BatchData,
    DataFlow,
    DataFromArrays,
    MapData,
    PrefetchData,
    ShuffleData,
)

pytestmark = pytest.mark.skipif(not Path("/proc/self").exists(), reason="reads /proc")

PROGRAM = Path(__file__).with_name("loading_program.py")
WITHIN_S = 2.0
KILLS = 100
# Batches between two kills: what two workers died of is taken to be what kills them.
APART = 40


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    gc.collect()
    workers, files, shared = set(children_of(os.getpid())), memory_files(), shared_memory()
    yield
    gc.collect()
    assert wait_until(lambda: set(children_of(os.getpid())) <= workers, 5), "workers are left"
    assert wait_until(lambda: memory_files() <= files, 5), "memory files are left"
    assert shared_memory() <= shared


def shared_memory() -> set[str]:
    return set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()


def pipeline(**options: Any) -> DataFlow:
    """400 batches of some 6 kB; a tenth of a millisecond of work for each item."""

    def work(dp: Any, rng: np.random.Generator) -> Any:
        image = np.full((10, 10, 3), dp[0] % 251, np.uint8)
        return image + rng.integers(0, 2, image.shape, np.uint8), dp[0]

    flow = MapData(ShuffleData(DataFromArrays(np.arange(8000))), work, rng=True)
    return PrefetchData(BatchData(flow, 20), num_proc=2, **options)


def same(one: Any, other: Any) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def own_workers(before: list[int]) -> list[int]:
    return [pid for pid in children_of(os.getpid()) if pid not in before]


@pytest.mark.slow
def test_killed_workers_are_replaced_and_the_output_is_the_same() -> None:
    expected = list(pipeline().iterate(seed=3, epoch=0))
    moments = random.Random(0)
    kills = scaled(KILLS, at_least=5)
    before = children_of(os.getpid())
    flow = pipeline(on_worker_death="restart", max_restarts=10 * KILLS)
    killed = 0
    while killed < kills:
        wait = APART
        with flow.iterate(seed=3, epoch=0) as iterator:
            for index, batch in enumerate(iterator):
                assert same(batch, expected[index]), index
                wait -= 1
                workers = own_workers(before) if wait < 0 and moments.random() < 0.2 else []
                if workers and killed < kills:
                    time.sleep(moments.random() * 0.005)
                    os.kill(moments.choice(workers), signal.SIGKILL)
                    killed, wait = killed + 1, APART
            assert index == len(expected) - 1
    del flow, iterator


def test_a_killed_worker_is_an_error_at_once() -> None:
    from towerpack import WorkerError

    before = children_of(os.getpid())

    def slow(dp: Any) -> Any:
        time.sleep(0.05)
        return dp

    flow = PrefetchData(BatchData(MapData(DataFromArrays(np.arange(4000)), slow), 10), num_proc=2)
    iterator = flow.iterate(seed=0)
    next(iterator)
    os.kill(own_workers(before)[0], signal.SIGKILL)
    with stopwatch() as watch, pytest.raises(WorkerError, match="SIGKILL"):
        for _ in iterator:
            pass
    # Batches that were whole before come first; each takes half a second of work.
    assert watch.seconds < WITHIN_S + 4
    iterator.close()


def test_a_killed_worker_is_an_error_though_another_hangs_before_it(tmp_path: Path) -> None:
    """And after it nothing is missing."""
    from towerpack import WorkerError

    hanging, release = tmp_path / "hanging", tmp_path / "release"

    def hang(dp: Any) -> Any:
        if dp[0] == 20 and not release.exists():
            hanging.write_text(str(os.getpid()))
            while not release.exists():
                time.sleep(0.01)
        time.sleep(0.01)  # long enough for a unit to be one of them
        return dp

    before = children_of(os.getpid())
    flow = MapData(DataFromArrays(np.arange(40)), hang)
    with PrefetchData(flow, num_proc=2).iterate(seed=0) as iterator:
        got = [int(next(iterator)[0]) for _ in range(20)]
        assert wait_until(lambda: hanging.exists() and hanging.read_text() != "", 20)
        (other,) = (pid for pid in own_workers(before) if str(pid) != hanging.read_text())
        os.kill(other, signal.SIGKILL)
        with stopwatch() as watch, pytest.raises(WorkerError, match="SIGKILL"):
            next(iterator)
        assert watch.seconds < WITHIN_S
        release.touch()
        got += [int(dp[0]) for dp in iterator]
    assert got == list(range(40))


def test_workers_do_not_outlive_a_parent_that_dies_in_a_thread() -> None:
    """The thread that starts workers may end long before the process does."""
    flow = pipeline()
    iterators: list[Any] = []

    def start() -> None:
        iterators.append(flow.iterate(seed=0))
        next(iterators[0])

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    time.sleep(0.2)
    assert len(list(itertools.islice(iterators[0], 9))) == 9
    iterators.clear()


HOLDS_THE_GIL = """
import ctypes, os, signal, sys, threading, time
from towerpack.dataflow import DataFromList, MapData, PrefetchData
marks, case = sys.argv[1:]

def hold(dp):
    if case == "fresh" and not os.path.exists(f"{marks}/died-{dp[0]}"):
        open(f"{marks}/died-{dp[0]}", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    open(f"{marks}/{os.getpid()}", "w").close()
    ctypes.PyDLL(None).sleep(30)  # it does not let go of the GIL
    return dp

def fork():
    while sum(name.isdecimal() for name in os.listdir(marks)) < 3:
        time.sleep(0.01)
    if not (pid := os.fork()):
        time.sleep(30)
        os._exit(0)
    open(f"{marks}/fork-{pid}", "w").close()

flow = MapData(DataFromList([(i,) for i in range(3)]), hold)
flow = PrefetchData(flow, num_proc=3, start=case, on_worker_death="restart").iterate(seed=0)
if case == "fresh":  # replaced workers, started by a thread, beside another child
    threading.Thread(target=fork, daemon=True).start()
    threading.Thread(target=next, args=(flow,)).start()
else:
    next(flow)
"""


@pytest.mark.parametrize("case", sample(["fresh", "fork"]))
def test_workers_that_hold_the_gil_do_not_outlive_their_parent(case: str, tmp_path: Path) -> None:
    def at_work() -> list[int]:
        return [int(path.name) for path in tmp_path.iterdir() if path.name.isdecimal()]

    def forked() -> list[int]:
        return [int(path.name[5:]) for path in tmp_path.glob("fork-*")]

    command = [sys.executable, "-c", HOLDS_THE_GIL, str(tmp_path), case]
    process = subprocess.Popen(command, env=environment())
    try:
        assert wait_until(lambda: len(at_work()) == 3, 30)
        assert wait_until(lambda: len(forked()) == (case == "fresh"), 5)
        time.sleep(0.1)  # what they do after they have said so
        process.kill()
        process.wait()
        assert wait_until(lambda: not any(map(is_alive, at_work())), WITHIN_S), case
        assert all(map(is_alive, forked()))
    finally:
        process.kill()
        process.wait()
        for pid in [*at_work(), *forked()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_interrupt_of_the_whole_terminal() -> None:
    """Ctrl-C goes to the workers too."""
    process = run("forever", start_new_session=True)
    workers = workers_of(process)
    os.killpg(process.pid, signal.SIGINT)
    out, err = communicate(process, 10)
    assert "interrupted" in out
    assert "Traceback" not in err
    assert wait_until(lambda: not any(map(is_alive, workers)), WITHIN_S)


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs to mount")
def test_small_shared_memory() -> None:
    """Batches of 20 MB where /dev/shm has 64 MB, as in a container."""
    mount = "mount -t tmpfs -o size=64m tmpfs /dev/shm"
    command = f'{mount} && exec "$@"'
    wrapped = ["unshare", "--mount", "--fork", "sh", "-c", command, "sh"]
    allowed = subprocess.run([*wrapped, "true"], capture_output=True, check=False)
    if allowed.returncode:
        pytest.skip("mounting is not allowed here")
    arguments = [*wrapped, sys.executable, str(PROGRAM), "big"]
    done = subprocess.run(
        arguments, capture_output=True, text=True, timeout=120, env=environment(), check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"sum {sum(range(200))}" in done.stdout


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "support")}


def run(what: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), what],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        **options,
    )


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("workers"), process.communicate()[1]
    workers = [int(pid) for pid in line.split()[1:]]
    assert len(workers) == 2
    return workers
