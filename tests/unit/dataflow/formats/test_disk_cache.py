from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from towerpack import ConfigError, DataFlowError
from towerpack.dataflow import (
    BatchData,
    DataFlow,
    DataFromIterable,
    DataFromList,
    MapData,
    RepeatedData,
    ShuffleData,
)
from towerpack.dataflow.formats import DiskCacheData
from towerpack.dataflow.testing import check_flow

COUNTS = itertools.count()


class Counted:
    """A function that knows how often it was called."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, datapoint: Any) -> Any:
        self.calls += 1
        return (datapoint, np.full(datapoint % 5, datapoint, np.int16))


def indexable(f: Any, count: int = 20) -> DataFlow:
    return MapData(DataFromList(list(range(count))), f)


class InOrder:
    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))


def in_order(f: Any, count: int = 20) -> DataFlow:
    return MapData(DataFromIterable(InOrder(count)), f)


KINDS = pytest.mark.parametrize("source", [indexable, in_order])


@KINDS
def test_what_is_below_runs_once_also_in_later_runs(tmp_path: Path, source: Any) -> None:
    first, second = Counted(), Counted()
    ds = DiskCacheData(source(first), tmp_path / "c")
    expected = list(source(Counted()))
    for _ in range(3):
        np.testing.assert_equal(list(ds), expected)
    assert first.calls == 20
    later = DiskCacheData(source(second), tmp_path / "c")
    np.testing.assert_equal(list(later), expected)
    assert second.calls == 0
    np.testing.assert_equal(list(cloudpickle.loads(cloudpickle.dumps(later))), expected)


@KINDS
@pytest.mark.parametrize("kept", ["nothing", "some", "all"])
def test_laws(tmp_path: Path, source: Any, kept: str) -> None:
    # Each flow that `make` constructs finds a directory in another state.
    def make() -> DataFlow:
        path = tmp_path / str(next(COUNTS) if kept == "nothing" else 0)
        return DiskCacheData(source(Counted()), path)

    if kept == "all":
        list(make())
    elif kept == "some":
        list(itertools.islice(make(), 7))
    check_flow(make)


def test_laws_of_stages_above(tmp_path: Path) -> None:
    def make() -> DataFlow:
        ds = DiskCacheData(indexable(Counted()), tmp_path / str(next(COUNTS) // 7))
        return BatchData(ShuffleData(ds), 3, stack="list")

    check_flow(make)
    check_flow(
        lambda: BatchData(DiskCacheData(in_order(Counted()), tmp_path / "s"), 3, stack="list")
    )


@KINDS
def test_a_run_that_is_stopped_loses_nothing(tmp_path: Path, source: Any) -> None:
    first, second = Counted(), Counted()
    iterator = iter(DiskCacheData(source(first), tmp_path / "c"))
    head = list(itertools.islice(iterator, 8))
    state = iterator.state()
    ds = DiskCacheData(source(second), tmp_path / "c")
    np.testing.assert_equal(head + list(ds.iterate(state=state)), list(source(Counted())))
    assert first.calls == 8 and second.calls == 12
    np.testing.assert_equal(list(ds), list(source(Counted())))
    assert len(list((tmp_path / "c").glob("*.part"))) <= 2


def test_random_stages_below_are_frozen(tmp_path: Path) -> None:
    def draw(datapoint: int, rng: np.random.Generator) -> float:
        return float(rng.random())

    def make(**options: Any) -> DataFlow:
        ds = MapData(DataFromList(list(range(9))), draw, rng=True)
        return DiskCacheData(ds, tmp_path / "c", **options)

    first = list(make().iterate(seed=3))
    assert list(make().iterate(seed=3, epoch=5)) == first
    with pytest.raises(ConfigError, match=r"another pipeline(.|\n)*seed=3(.|\n)*seed=4"):
        list(make().iterate(seed=4))
    frozen = DiskCacheData(make().ds, tmp_path / "d", seed=3)
    assert list(frozen.iterate(seed=8)) == list(frozen.iterate(seed=9))


def test_the_cache_of_another_pipeline_is_refused(tmp_path: Path) -> None:
    list(DiskCacheData(indexable(Counted()), tmp_path / "c"))
    for other in (
        DiskCacheData(indexable(Counted(), 21), tmp_path / "c"),
        DiskCacheData(indexable(str), tmp_path / "c"),
        DiskCacheData(indexable(Counted()), tmp_path / "c", version="2"),
    ):
        with pytest.raises(ConfigError, match="cache of another pipeline"):
            list(other)
    (tmp_path / "x").write_text("mine")
    with pytest.raises(ConfigError, match="something else"):
        list(DiskCacheData(indexable(Counted()), tmp_path))
    (tmp_path / "c" / "about").write_bytes(b"?")
    with pytest.raises(ConfigError, match="damaged"):
        list(DiskCacheData(indexable(Counted()), tmp_path / "c"))
    with pytest.raises(ConfigError, match="infinite"):
        DiskCacheData(RepeatedData(indexable(Counted()), -1), tmp_path / "e")
    assert math.isinf(RepeatedData(indexable(Counted()), -1).length())


def test_what_cannot_be_packed_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="set cannot be packed"):
        list(DiskCacheData(DataFromList([{1}]), tmp_path / "c"))


def test_errors_below_pass_and_are_tried_again(tmp_path: Path) -> None:
    broken = [True]

    def fail(datapoint: int) -> int:
        if datapoint == 5 and broken:
            raise KeyError("gone")
        return datapoint

    for source in (indexable, in_order):
        iterator = iter(DiskCacheData(source(fail), tmp_path / source.__name__))
        found = list(itertools.islice(iterator, 5))
        broken[:] = [True]
        with pytest.raises(DataFlowError, match="gone"):
            next(iterator)
        broken.clear()
        assert found + list(iterator) == list(range(20))


@KINDS
@given(data=st.data())
def test_damaged_and_cut_parts_are_computed_again(
    tmp_path_factory: pytest.TempPathFactory, source: Any, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / f"cache{next(COUNTS)}"
    expected = list(DiskCacheData(source(Counted()), path))
    (part,) = path.glob("*.part")
    content = bytearray(part.read_bytes())
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    else:
        # The length of a pass is checked by nothing but its own checksum.
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    part.write_bytes(content)
    for _ in range(2):
        np.testing.assert_equal(list(DiskCacheData(source(Counted()), path)), expected)


def test_threads_share_a_cache(tmp_path: Path) -> None:
    ds = DiskCacheData(indexable(Counted(), 300), tmp_path / "c")
    expected = list(indexable(Counted(), 300))
    plan = ds.plan(seed=0)
    found: list[list[Any]] = [[] for _ in range(4)]

    def read(index: int) -> None:
        order = np.random.default_rng(index).permutation(300)
        rows = dict(zip(order.tolist(), plan.read(order), strict=True))
        found[index] = [rows[i] for i in range(300)]

    threads = [threading.Thread(target=read, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rows in found:
        np.testing.assert_equal(rows, expected)


SCRIPT = """
    import os, sys
    from towerpack.dataflow import DataFromList, MapData
    from towerpack.dataflow.formats import DiskCacheData

    def double(x):
        if x == int(sys.argv[2]):
            os.kill(os.getpid(), 9)
        return 2 * x

    ds = DiskCacheData(MapData(DataFromList(list(range(100))), double), sys.argv[1])
    plan = ds.plan(seed=0)
    order = range(100) if sys.argv[3] == "up" else range(99, -1, -1)
    assert [plan.get(i) for i in order] == [2 * i for i in order]
"""


def test_processes_share_a_cache_and_may_be_killed(tmp_path: Path) -> None:
    def run(kill_at: int, way: str) -> subprocess.Popen[bytes]:
        script = textwrap.dedent(SCRIPT)
        return subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path / "c"), str(kill_at), way]
        )

    killed = [run(70, "up"), run(85, "down")]
    assert [one.wait() for one in killed] == [-9, -9]
    assert [one.wait() for one in [run(-1, "up"), run(-1, "down")]] == [0, 0]
    parts = list((tmp_path / "c").glob("*.part"))
    assert 1 <= len(parts) <= 3
    assert os.path.getsize(tmp_path / "c" / "about") > 0


def test_a_file_is_no_cache(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    with pytest.raises(ConfigError, match="is a file"):
        DiskCacheData(DataFromList([1]), tmp_path / "file")
    ds = DiskCacheData(DataFromList([1]), tmp_path / "file" / "cache")
    with pytest.raises(ConfigError, match="cannot be made"):
        list(ds)
