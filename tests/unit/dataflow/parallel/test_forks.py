"""Workers that are forks of the consumer. In fresh processes: here there are threads."""

from __future__ import annotations

import subprocess
import sys

import pytest

BEGIN = """
import itertools, os, signal, sys, threading, time
from towerpack.dataflow import DataFromGenerator, DataFromList, MapData, PrefetchData
"""


def run(code: str) -> str:
    """What a script prints; nothing else may be said."""
    command = [sys.executable, "-c", BEGIN + code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_on_request() -> None:
    said = run("""
lock = threading.Lock()
def guarded(dp):
    with lock:
        return (dp[0], os.getpid())
data = DataFromList([(i,) for i in range(50)])
flow = PrefetchData(MapData(data, guarded), num_proc=2, start="fork")
found = list(flow.iterate(seed=0))
assert [dp[0] for dp in found] == list(range(50))
assert os.getpid() not in {dp[1] for dp in found}
assert len(list(flow.iterate(seed=0))) == 50
threading.Thread(target=threading.Event().wait, name="mine", daemon=True).start()
try:
    next(PrefetchData(flow.ds, num_proc=1, start="fork").iterate())
except Exception as error:
    print(error)
""")
    assert "2 threads run (MainThread, mine)" in said


def test_opencv_has_one_thread_from_the_first_datapoint_on() -> None:
    pytest.importorskip("cv2")
    run("""
import cv2
cv2.setNumThreads(4)
flow = MapData(DataFromList([(i,) for i in range(20)]), lambda dp: (cv2.getNumThreads(),))
assert set(PrefetchData(flow, num_proc=2, start="fork")) == {(1,)}
assert cv2.getNumThreads() == 4
""")


def test_one_that_dies_is_replaced_while_a_thread_reads() -> None:
    run("""
import tempfile
marks = tempfile.mkdtemp()
def dies(dp):
    mark = os.path.join(marks, str(dp[0]))
    if dp[0] in (0, 40, 1000) and not os.path.exists(mark):
        open(mark, "x").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return dp
import logging
logging.getLogger("towerpack").setLevel(logging.ERROR)
flow = MapData(DataFromGenerator(lambda: ((i,) for i in range(2000))), dies)
options = {"num_proc": 2, "start": "fork", "on_worker_death": "restart"}
assert list(PrefetchData(flow, **options)) == [(i,) for i in range(2000)]
assert sorted(os.listdir(marks)) == ["0", "1000", "40"]
""")


def test_a_reader_does_not_wait_for_itself_nor_for_ever_for_another() -> None:
    said = run("""
from towerpack.dataflow.parallel import _start_process
def refused(flow):
    try:
        list(flow)
    except Exception as error:
        print(error)
def inner():
    yield from PrefetchData(DataFromList([(1,), (2,)]), num_proc=1, start="fork")
_start_process._REST_S = 1000
refused(PrefetchData(MapData(DataFromGenerator(inner), lambda dp: dp), num_proc=1))
inside = threading.Event()
def hangs():
    yield (0,)
    inside.set()
    threading.Event().wait()
_start_process._REST_S = 0.2
first = PrefetchData(
    MapData(DataFromGenerator(hangs), lambda dp: dp), num_proc=1, start="fork"
).iterate(seed=0)
print(next(first))
inside.wait()  # Until then the thread is outside of its source, and a fork is safe.
refused(PrefetchData(DataFromList([(1,)]), num_proc=1, start="fork"))
first.close()
""")
    assert said.count("2 threads run") == 2
    assert "(MainThread, towerpack-data-reader)" in said.split("(0,)")[1]
