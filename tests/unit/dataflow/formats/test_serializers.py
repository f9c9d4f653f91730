from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

from towerpack import BatchError, ConfigError, FormatError
from towerpack.dataflow import DataFromGenerator, DataFromList, RepeatedData
from towerpack.dataflow.formats import (
    HDF5Data,
    HDF5Serializer,
    LMDBData,
    LMDBSerializer,
    NumpySerializer,
    TarSerializer,
    TFRecordSerializer,
)

ROWS: list[Any] = [(np.full((2, 3), i, np.uint16), i, i % 2 == 0, 0.5 * i) for i in range(600)]


def generated(rows: list[Any]) -> DataFromGenerator:
    return DataFromGenerator(lambda: iter(rows))


def test_numpy(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    NumpySerializer.save(DataFromList(ROWS), path)
    assert list(tmp_path.iterdir()) == [path]
    np.testing.assert_equal(list(NumpySerializer.load(path, shuffle=False)), ROWS)
    assert sorted(dp[1] for dp in NumpySerializer.load(path)) == list(range(600))
    names = ["file", "allow_pickle", "args", "a/b", "ä", "x.npy", "self"]
    rows = [{**dict.fromkeys(names, i), "text": f"ä{i}", "raw": b"a" * (i + 1)} for i in range(5)]
    NumpySerializer.save(DataFromList(rows), path)
    assert list(NumpySerializer.load(path, shuffle=False)) == rows
    with np.load(path) as loaded:
        assert all(loaded[name].tolist() == list(range(5)) for name in names)


def test_numpy_refuses_what_would_not_come_back(tmp_path: Path) -> None:
    for rows in (
        *([], [[np.zeros(2)], [np.zeros(3)]], [[{1}], [{2}]]),
        *([[b"a"], [b"\0"]], [["a"], ["a\0"]], [["a"], [b"a"]]),
        *([{"arr_0": 1, 0: 2}], [{"a\0": 1}], [{"\ud800": 1}]),
    ):
        with pytest.raises((ConfigError, BatchError)):
            NumpySerializer.save(DataFromList(rows), tmp_path / "t.npz")
        assert list(tmp_path.iterdir()) == [], rows


@pytest.mark.parametrize("source", [DataFromList, generated])
def test_hdf5(tmp_path: Path, source: Any) -> None:
    path, names = tmp_path / "t.h5", ["images", "train/labels", "even", "half"]
    HDF5Serializer.save(source(ROWS), path, names)
    assert list(tmp_path.iterdir()) == [path]
    found = list(HDF5Serializer.load(path, names, shuffle=False))
    np.testing.assert_equal(found, [list(row) for row in ROWS])
    assert isinstance(HDF5Serializer.load(path, names), HDF5Data)


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([], "no datapoints"),
        ([[1, 2]], "components"),
        ([3], "a tuple, list or dict"),
        ([[np.zeros(2)]] * 256 + [[np.zeros(3)]], "from datapoint 256 on"),
        ([[1]] * 256 + [[1.5]], "another dtype or shape"),
        *[([[bad]], "HDF5 cannot store") for bad in (b"\xff\xd8", np.array([b"ab", b"c"]))],
        *[([[bad]], "HDF5 cannot store") for bad in ("a\0b", "\ud800", np.timedelta64(3, "s"))],
        ([[np.zeros(2, [("a", "U3")])]], "HDF5 cannot store"),
    ],
)
def test_hdf5_refuses_what_would_not_come_back(tmp_path: Path, rows: list[Any], told: str) -> None:
    with pytest.raises((ConfigError, BatchError), match=told):
        HDF5Serializer.save(DataFromList(rows), tmp_path / "t.h5", ["x"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("source", [DataFromList, generated])
def test_hdf5_strings(tmp_path: Path, source: Any) -> None:
    path, names = tmp_path / "t.h5", ["one", "many", "array"]
    array = np.array([["x", "yy", ""]] * 2)
    rows = [["ä" * (i // 100), np.array(["", "b" * i], object), array] for i in range(600)]
    HDF5Serializer.save(source(rows), path, names)
    found = list(HDF5Serializer.load(path, names, shuffle=False))
    np.testing.assert_equal(found, rows)
    assert all(type(dp[0]) is str for dp in found)


def save_hdf5(df: Any, path: Path) -> None:
    HDF5Serializer.save(df, path, ["a", "b"])


SAVERS: list[Callable[[Any, Path], Any]] = [
    *(LMDBSerializer.save, TFRecordSerializer.save, TarSerializer.save),
    *(NumpySerializer.save, save_hdf5),
]


@pytest.mark.parametrize("save", SAVERS)
def test_targets_and_flows_that_cannot_be(tmp_path: Path, save: Callable[[Any, Path], Any]) -> None:
    class Unread(DataFromList):
        def __iter__(self) -> Iterator[Any]:
            yield from ()
            raise AssertionError("it was read")

    ds = Unread([{"a": b"1"}])
    with pytest.raises(ConfigError, match="must be finite"):
        save(RepeatedData(ds), tmp_path / "endless")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError, match=r"directory .*none' for 'file' does not exist"):
        save(ds, tmp_path / "none" / "file")
    (tmp_path / "there" / "data.mdb").mkdir(parents=True)
    with pytest.raises(ConfigError, match="it is a directory"):
        save(ds, tmp_path / "there")


@pytest.mark.parametrize("save", SAVERS[-2:])
def test_what_does_not_stack_can_be_stored_as_it_is_told(tmp_path: Path, save: Any) -> None:
    nulls = [(np.zeros(2), None), (np.ones(2), None)]
    for rows in (nulls, [(np.zeros(2), 0), (np.ones(3), 1)], [({"nested": 1}, 0)]):
        with pytest.raises(BatchError) as caught:
            save(DataFromList(rows), tmp_path / "x")
        fix = caught.value.fix or ""
        assert "LMDBSerializer or TFRecordSerializer" in fix
        assert "stack=" not in fix and "pad=" not in fix and "batch" not in fix.lower()


@pytest.mark.parametrize("format", ["wire", "example", "pickle"])
@pytest.mark.parametrize("serializer", [LMDBSerializer, TFRecordSerializer])
def test_none_is_refused_before_it_is_written(tmp_path: Path, serializer: Any, format: Any) -> None:
    for rows in ([None], [{"a": 1}, None]):
        with pytest.raises(ConfigError, match="must not be None"):
            serializer.save(DataFromList(rows), tmp_path / "a", format=format)
    assert not list(tmp_path.iterdir())


WRITER = """
import sys, h5py
with h5py.File(sys.argv[1], "r+"):
    print("open", flush=True)
    sys.stdin.read()
"""


def test_a_file_that_is_open_elsewhere_is_not_called_damaged(tmp_path: Path) -> None:
    HDF5Serializer.save(DataFromList([(1,)]), tmp_path / "a.h5", ["x"])
    LMDBSerializer.save(DataFromList([(1,)]), tmp_path / "a.lmdb")
    command = [sys.executable, "-c", WRITER, str(tmp_path / "a.h5")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None and writer.stdout.readline() == b"open\n"
        with pytest.raises(FormatError, match="close the file in all programs") as told:
            HDF5Data(tmp_path / "a.h5", ["x"])
        assert "damaged" not in str(told.value)
        writer.communicate()
    with (
        lmdb.open(str(tmp_path / "a.lmdb"), subdir=False, readonly=True),
        pytest.raises(FormatError, match="close the file in all programs"),
    ):
        LMDBData(tmp_path / "a.lmdb")
    assert len(HDF5Data(tmp_path / "a.h5", ["x"])) == len(LMDBData(tmp_path / "a.lmdb")) == 1
    (tmp_path / "b").write_bytes(b"?" * 9999)
    for read in (LMDBData, lambda path: HDF5Data(path, ["x"])):
        with pytest.raises(FormatError, match="damaged"):
            read(tmp_path / "b")
