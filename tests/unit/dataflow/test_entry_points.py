"""Everything that reads a user's flow opens a pass of it, with a seed and an epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from towerpack.dataflow import (
    DataFlow,
    HDF5Serializer,
    LMDBSerializer,
    NumpySerializer,
    TestDataSpeed,
    TFRecordSerializer,
    profile,
)
from towerpack.dataflow._user_code import AMBIENT


class Watched(DataFlow):
    """Notes for each pass whether it was opened as one."""

    def __init__(self) -> None:
        self.opened: list[bool] = []

    def __iter__(self) -> Iterator[Any]:
        self.opened.append(AMBIENT.get() is not None)
        yield (np.zeros(2),)
        yield (np.ones(2),)


READERS: dict[str, Callable[[DataFlow, Path], object]] = {
    "speed": lambda ds, path: TestDataSpeed(ds, 3).measure(),
    "profile": lambda ds, path: profile(ds, 0.01),
    "lmdb": lambda ds, path: LMDBSerializer.save(ds, str(path / "x.lmdb")),
    "numpy": lambda ds, path: NumpySerializer.save(ds, str(path / "x.npz")),
    "tfrecord": lambda ds, path: TFRecordSerializer.save(ds, str(path / "x.tfrecord")),
    "hdf5": lambda ds, path: HDF5Serializer.save(ds, str(path / "x.h5"), ["x"]),
}


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_opens_a_pass(reader: str, tmp_path: Path) -> None:
    ds = Watched()
    READERS[reader](ds, tmp_path)
    assert ds.opened
    assert all(ds.opened)
