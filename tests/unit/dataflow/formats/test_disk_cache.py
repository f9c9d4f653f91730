from __future__ import annotations

import contextlib
import itertools
import os
import random
import sqlite3
import subprocess
import sys
import textwrap
import zlib
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

from dataset_files import damaged
from every_flow import SOURCES, write_files
from scaling import scaled
from towerpack import ConfigError, DataFlowError, FormatError
from towerpack.dataflow import (
    DataFlow,
    DataFromArrays,
    DataFromGenerator,
    DataFromList,
    FakeData,
    ImageFolder,
    ImageFromFile,
    MapData,
    RepeatedData,
    ShuffleData,
)
from towerpack.dataflow.content import content_of
from towerpack.dataflow.formats import DiskCacheData, pack
from towerpack.dataflow.testing import check_flow


class Counted:
    """A function that knows how often it was called."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, datapoint: Any) -> Any:
        self.calls += 1
        return (datapoint, np.full(datapoint % 5, datapoint, np.int16))


def indexable(f: Any, count: int = 20) -> DataFlow:
    return MapData(DataFromList(list(range(count))), f)


def in_order(f: Any, count: int = 20) -> DataFlow:
    return MapData(DataFromGenerator(lambda: iter(range(count))), f)


KINDS = pytest.mark.parametrize("source", [indexable, in_order])


@KINDS
def test_what_is_below_runs_once_also_in_later_runs(tmp_path: Path, source: Any) -> None:
    first, second = Counted(), Counted()
    ds, later = (DiskCacheData(source(one), tmp_path) for one in (first, second))
    expected = list(source(Counted()))
    for again in (ds, ds, later, cloudpickle.loads(cloudpickle.dumps(later))):
        np.testing.assert_equal(list(again), expected)
    assert first.calls == 20 and second.calls == 0


@KINDS
def test_laws_where_some_is_kept(tmp_path: Path, source: Any) -> None:
    list(itertools.islice(DiskCacheData(source(Counted()), tmp_path), 7))
    check_flow(lambda: DiskCacheData(source(Counted()), tmp_path))


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


def test_random_stages_below_are_frozen(tmp_path: Path) -> None:
    def draw(datapoint: int, rng: np.random.Generator) -> float:
        return float(rng.random())

    below = MapData(DataFromList(list(range(9))), draw, rng=True)
    ds = DiskCacheData(below, tmp_path / "c")
    assert list(ds.iterate(seed=3)) == list(ds.iterate(seed=3, epoch=5))
    with pytest.raises(ConfigError, match=r"another pipeline(.|\n)*seed=3(.|\n)*seed=4"):
        list(ds.iterate(seed=4))
    frozen = DiskCacheData(below, tmp_path / "d", seed=3)
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
    with pytest.raises(ConfigError, match="do not belong to a cache"):
        list(DiskCacheData(indexable(Counted()), tmp_path))
    (tmp_path / "c" / "datapoints.sqlite").write_bytes(b"?" * 5000)
    with pytest.raises(FormatError, match="damaged"):
        list(DiskCacheData(indexable(Counted()), tmp_path / "c"))
    with pytest.raises(ConfigError, match="must be finite"):
        DiskCacheData(RepeatedData(indexable(Counted()), -1), tmp_path / "e")


def identity_bytes(identity: Any) -> bytes:
    content = pack(identity)
    return zlib.crc32(content, 0xFFFFFFFE).to_bytes(4, "little") + content


STATEMENTS = [
    "CREATE TRIGGER t AFTER INSERT ON datapoints BEGIN DELETE FROM datapoints; END",
    "CREATE VIEW other AS SELECT * FROM datapoints",
    f"UPDATE datapoints SET data = x'{identity_bytes([1, 2]).hex()}' WHERE position = -2",
]


@pytest.mark.parametrize("statement", STATEMENTS)
def test_the_cache_of_a_stranger_runs_no_sql(tmp_path: Path, statement: str) -> None:
    ds = DiskCacheData(indexable(Counted()), tmp_path)
    list(ds)
    db = sqlite3.connect(tmp_path / "datapoints.sqlite")
    with db:
        db.execute(statement)
    db.close()
    with pytest.raises(FormatError, match="damaged"):
        list(DiskCacheData(indexable(Counted()), tmp_path))


def test_a_link_is_not_written_through(tmp_path: Path) -> None:
    mine = tmp_path / "mine.sqlite"
    mine.touch()
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "datapoints.sqlite").symlink_to(mine)
    with pytest.raises(ConfigError, match="must not be a link"):
        list(DiskCacheData(indexable(Counted()), tmp_path / "c"))
    assert not mine.read_bytes()


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
@pytest.mark.parametrize("seed", range(scaled(200)))
def test_what_is_damaged_is_computed_again_or_an_error(
    tmp_path: Path, source: Any, seed: int
) -> None:
    expected = list(DiskCacheData(source(Counted()), tmp_path))
    (kept,) = tmp_path.glob("*.sqlite")
    kept.write_bytes(damaged(kept.read_bytes(), random.Random(seed).randrange))
    for _ in range(2):
        with contextlib.suppress(FormatError, DataFlowError):
            np.testing.assert_equal(list(DiskCacheData(source(Counted()), tmp_path)), expected)


def test_a_damaged_datapoint_is_computed_again(tmp_path: Path) -> None:
    ds = DiskCacheData(DataFromList(["x" * 50, "y" * 50]), tmp_path)
    expected = list(ds)
    (kept,) = tmp_path.glob("*.sqlite")
    kept.write_bytes(kept.read_bytes().replace(b"y" * 50, b"z" * 50))
    for _ in range(2):
        assert list(DiskCacheData(ds.ds, tmp_path)) == expected == ["x" * 50, "y" * 50]
    assert b"z" * 50 not in kept.read_bytes()


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

    assert [one.wait() for one in [run(70, "up"), run(85, "down")]] == [-9, -9]
    assert run(-1, "up").wait() == 0


def assert_told_apart(*flows: DataFlow) -> None:
    """No two of these may use one cache."""
    contents = [content_of(flow) for flow in flows]
    assert len(set(contents)) == len(flows)
    assert [content_of(flow) for flow in flows] == contents


def test_values_in_memory_are_told_apart() -> None:
    lists: list[list[Any]] = [[1, 2, 3], [1], [True], ["1"], [b"a", b"b"], [b"ab", b""]]
    assert_told_apart(*map(DataFromList, [*lists, [(1, [2])], [(1, (2,))], [{"b": "\ud800"}]]))
    zeros = np.zeros((4, 3), np.float32)
    last = zeros.copy()
    last[-1, -1] = -0.0  # equal, and yet another
    objects = [np.array([value, None], object) for value in ("a", "b")]
    arrays = (zeros, last, zeros.astype(np.int32), zeros.reshape(4, 1, 3), *objects)
    assert_told_apart(*map(DataFromArrays, arrays))
    strided = np.zeros((4, 6), np.float32)[:, ::2]
    assert DataFromArrays(strided).content() == DataFromArrays(zeros).content()


def test_arguments_that_change_datapoints_are_told_apart(tmp_path: Path) -> None:
    numbers = DataFromList(list(range(9)))
    shuffled = [DataFromList(numbers.lst, True, seed=seed) for seed in (1, 2, None)]
    assert_told_apart(numbers, *(ShuffleData(numbers, seed=seed) for seed in (1, 2)), *shuffled)
    assert_told_apart(FakeData([[2]], 3), FakeData([[3]], 3), FakeData([[2]], 3, dtype="f8"))
    files = [tmp_path / "a" / "0.png", tmp_path / "b" / "0.png"]
    for path in files:
        path.parent.mkdir()
        path.write_bytes(b"")
    assert_told_apart(
        *(ImageFromFile([file]) for file in files),
        ImageFromFile(files[:1], 1),
        ImageFromFile(files[:1], resize=2),
        *(ImageFolder(tmp_path, classes=names) for names in (["a", "b"], ["b", "a"])),
        ImageFolder(tmp_path, classes=["a", "b"], decode=False),
    )


# What these hold is in memory, where every value is looked at, or comes from code, which is not.
IN_MEMORY = (
    *("DataFrom", "DataFlow", "RNGDataFlow", "FakeData"),
    *("Mnist", "FashionMnist", "Cifar", "SVHN", "Caltech101", "Digits"),
    "SQLData",
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    write_files(folder)
    return folder


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_knows_what_it_reads(files: Path, name: str) -> None:
    _, make = SOURCES[name]
    before = content_of(make(files))
    assert content_of(make(files)) == before
    assert content_of(cloudpickle.loads(cloudpickle.dumps(make(files)))) == before
    for path in files.rglob("*"):
        if path.is_file():
            os.utime(path, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns + 10**9))
    in_memory = name.startswith(IN_MEMORY)
    assert (content_of(make(files)) == before) == in_memory
