from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from towerpack import BatchError, ConfigError
from towerpack.dataflow import DataFromIterable, DataFromList
from towerpack.dataflow.formats import HDF5Data, HDF5Serializer, NumpySerializer
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
