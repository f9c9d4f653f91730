from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from towerpack import BatchError, ConfigError
from towerpack.dataflow import DataFromIterable, DataFromList, FixedSizeData, RepeatedData
from towerpack.dataflow.formats import (
    HDF5Data,
    HDF5Serializer,
    LMDBSerializer,
    NumpySerializer,
    TarSerializer,
    TFRecordSerializer,
    TFRecordWriter,
)
from towerpack.dataflow.testing import check_flow

ROWS: list[Any] = [(np.full((2, 3), i, np.uint16), i, i % 2 == 0, 0.5 * i) for i in range(600)]


def iterable(rows: list[Any]) -> DataFromIterable:
    class Rows:
        def __iter__(self) -> Iterator[Any]:
            return iter(rows)

    return DataFromIterable(Rows())


def test_numpy(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    NumpySerializer.save(DataFromList(ROWS), path)
    assert list(tmp_path.iterdir()) == [path]
    found = list(NumpySerializer.load(path, shuffle=False))
    np.testing.assert_equal(found, ROWS)
    check_flow(lambda: NumpySerializer.load(path), limit=20)
    assert sorted(dp[1] for dp in NumpySerializer.load(path)) == list(range(600))


def test_numpy_dicts_and_strings(tmp_path: Path) -> None:
    rows = [{"name": f"ä{i}", "x": np.float32(i), "raw": b"a" * (i + 1)} for i in range(5)]
    NumpySerializer.save(DataFromList(rows), tmp_path / "t.npz")
    assert list(NumpySerializer.load(tmp_path / "t.npz", shuffle=False)) == rows


def test_numpy_refuses(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    for rows, error in (
        ([], ConfigError),
        ([[np.zeros(2)], [np.zeros(3)]], BatchError),
        ([[{1}], [{2}]], ConfigError),
    ):
        with pytest.raises((error, BatchError)):
            NumpySerializer.save(DataFromList(rows), path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("source", [DataFromList, iterable])
def test_hdf5(tmp_path: Path, source: Any) -> None:
    path, names = tmp_path / "t.h5", ["images", "train/labels", "even", "half"]
    HDF5Serializer.save(source(ROWS), path, names)
    assert list(tmp_path.iterdir()) == [path]
    found = list(HDF5Serializer.load(path, names, shuffle=False))
    np.testing.assert_equal(found, [list(row) for row in ROWS])
    assert isinstance(HDF5Serializer.load(path, names), HDF5Data)
    check_flow(lambda: HDF5Serializer.load(path, names), limit=20, epochs=1)


def test_hdf5_refuses(tmp_path: Path) -> None:
    path = tmp_path / "t.h5"
    late = [[np.zeros(2)]] * 256 + [[np.zeros(3)]]
    for rows, error, reason in (
        ([], ConfigError, "no datapoints"),
        ([[1, 2]], ConfigError, "components"),
        ([3], ConfigError, "components"),
        (late, BatchError, "from datapoint 256 on"),
        ([[1]] * 256 + [[1.5]], BatchError, "changes"),
    ):
        with pytest.raises(error, match=reason):
            HDF5Serializer.save(DataFromList(rows), path, ["x"])
    assert list(tmp_path.iterdir()) == []


def _save_hdf5(df: Any, path: Path) -> None:
    HDF5Serializer.save(df, path, ["a"])


SAVERS: list[Callable[[Any, Path], Any]] = [
    LMDBSerializer.save,
    TFRecordSerializer.save,
    NumpySerializer.save,
    TarSerializer.save,
    _save_hdf5,
]


def test_what_never_ends_is_refused(tmp_path: Path) -> None:
    endless = FixedSizeData(RepeatedData(DataFromList([(1,)])), 5)
    LMDBSerializer.save(endless, tmp_path / "five")
    assert len(LMDBSerializer.load(tmp_path / "five")) == 5
    for save in SAVERS:
        with pytest.raises(ConfigError, match="endless flow"):
            save(endless.ds, tmp_path / "endless")
    assert os.listdir(tmp_path) == ["five"]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    for save in SAVERS:
        with pytest.raises(ConfigError, match=r"no directory .*none' to write 'file'"):
            save(DataFromList([{"a": b"1"}]), tmp_path / "none" / "file")


def test_records_are_bytes(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match="bytes, not a str"),
        TFRecordWriter(tmp_path / "a") as writer,
    ):
        writer.write("text")  # pyright: ignore[reportArgumentType]
    assert not os.listdir(tmp_path)
