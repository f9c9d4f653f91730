"""Arguments of types that users plausibly give, and what they are told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from towerpack import dataflow as df
from towerpack._core.errors import ConfigError
from towerpack.dataflow.formats import TFRecordWriter


def any_(value: object) -> Any:
    """What a type checker would refuse, it must not see."""
    return value


def ten() -> df.DataFlow:
    return df.DataFromList([(i,) for i in range(10)])


COUNTS: dict[str, Callable[[Any], object]] = {
    "batch_size": lambda n: df.BatchData(ten(), n),
    "batch_size by shape": lambda n: df.BatchDataByShape(ten(), n, 0),
    "max_waiting": lambda n: df.BatchDataByShape(ten(), 2, 0, max_waiting=n),
    "batch_size by length": lambda n: df.BatchByLength(ten(), n, [3]),
    "batch_size of a bucket": lambda n: df.BatchByLength(ten(), [n, 2], [3]),
    "max_tokens": lambda n: df.BatchByLength(ten(), None, [1], max_tokens=n),
    "boundaries": lambda n: df.BatchByLength(ten(), 2, [n]),
    "size": lambda n: df.FixedSizeData(ten(), n),
    "buffer_size": lambda n: df.LocallyShuffleData(ten(), n),
    "num_reuse": lambda n: df.LocallyShuffleData(ten(), 2, n),
    "n": lambda n: df.RepeatedData(ten(), n),
    "n of each": lambda n: df.RepeatedDataPoint(ten(), n),
    "num_shards": lambda n: df.ShardData(ten(), n, 0),
    "index": lambda n: df.ShardData(ten(), 5, n),
    "num_shards of rows": lambda n: df.ShardRows(df.BatchData(ten(), 6), n, 0),
    "size of a test": lambda n: df.TestDataSpeed(ten(), n),
    "warmup": lambda n: df.TestDataSpeed(ten(), 5, n),
    "num": lambda n: df.PrintData(ten(), n),
    "max_depth": lambda n: df.PrintData(ten(), max_depth=n),
    "size of a fake": lambda n: df.FakeData([[2]], n),
    "a side of a shape": lambda n: df.FakeData([[n]]),
    "seed": lambda n: ten().iterate(seed=n),
    "seed of a plan": lambda n: ten().plan(seed=n),
    "seed of a shuffle": lambda n: df.ShuffleData(ten(), seed=n),
    "epoch": lambda n: ten().iterate(epoch=n),
}


@pytest.mark.parametrize("name", COUNTS)
def test_counts(name: str) -> None:
    make = COUNTS[name]
    make(3)
    make(np.int64(3))
    for wrong, shown in ((2.0, "2.0 (float)"), ("2", "'2' (str)")):
        with pytest.raises(ConfigError, match="must be an integer") as caught:
            make(wrong)
        assert f"got {shown}." in caught.value.what
    if name not in ("num", "max_depth"):
        with pytest.raises(ConfigError):
            make(-2)


@pytest.mark.parametrize(
    "stage", [df.ConcatData, df.JoinData, df.MixData, df.RandomMixData, df.RandomChooseData]
)
def test_flows_that_are_no_list(stage: Any) -> None:
    # An endless flow must not be read, either.
    for wrong in (ten(), df.DataFromGenerator(lambda: iter(lambda: (0,), None))):
        with pytest.raises(ConfigError, match="needs a list of flows") as caught:
            stage(wrong)
        assert caught.value.fix == f"pass a list: {stage.__name__}([ds, ...])"
    assert len(list(stage(iter([ten()])).iterate(seed=0))) == 10


@pytest.mark.parametrize(
    "make",
    [
        lambda: df.MultiProcessMapData(ten(), 2, bool, any_("5")),
        lambda: df.MultiProcessMapAndBatchData(ten(), 2, bool, 0, 5),
        lambda: df.MultiThreadRunner(any_(3)),
        lambda: df.MixData([ten(), ten()], any_(["a", 1])),
        lambda: df.BatchByLength(ten(), 2, any_("ab")),
        lambda: df.BatchDataByShape(ten(), 2, 0, max_waiting=3, remainder=False),
        lambda: df.FilterData(ten(), bool, on_error="skip", max_errors=any_("3")),
        lambda: df.DataFromList(any_(i for i in range(3))),
        lambda: df.DataFromList(any_({"image": [1, 2]})),
        lambda: df.DataFromList(any_("train.txt")),
        lambda: df.DataFromGenerator(any_(3)),
        lambda: df.DataFromIterable(any_(lambda: [1])),
        lambda: df.FakeData(any_([28, 28])),
        lambda: df.FakeData([[2, -1]]),
        lambda: df.FakeData([[2]], dtype="nope"),
        lambda: df.FakeData([[2]], domain=any_(3)),
    ],
)
def test_what_cannot_be(make: Callable[[], df.DataFlow]) -> None:
    with pytest.raises(ConfigError):
        make()


def test_what_is_as_good() -> None:
    class Squares:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> tuple[int]:
            if index == 3:
                raise IndexError
            return (index**2,)

    for lst in (Squares(), np.arange(3), ((1,), (2,), (3,)), range(3)):
        assert len(list(df.DataFromList(any_(lst)))) == 3
        assert len(list(df.DataFromIterable(any_(lst)))) == len(
            list(df.DataFromGenerator(any_(lst)))
        )
    for taken in (np.int64(3), np.float32(0.3)):
        df.FilterData(ten(), bool, on_error="skip", max_errors=any_(taken))


PATHS: dict[str, Callable[[Any], object]] = {
    "TFRecordData": df.TFRecordData,
    "TarData": df.TarData,
    "ParquetData": df.ParquetData,
    "LMDBData": df.LMDBData,
    "CaffeLMDB": df.CaffeLMDB,
    "NumpyData": df.NumpyData,
    "SVMLightData": df.SVMLightData,
    "ImageCSV": df.ImageCSV,
    "ImageFolder": df.ImageFolder,
    "DiskCacheData": lambda path: df.DiskCacheData(ten(), path),
    "TarWriter": df.TarWriter,
    "TFRecordWriter": TFRecordWriter,
    "TFRecordSerializer": lambda path: df.TFRecordSerializer.save(ten(), path),
    "TarSerializer": lambda path: df.TarSerializer.save(ten(), path),
    "LMDBSerializer": lambda path: df.LMDBSerializer.save(ten(), path),
    "NumpySerializer": lambda path: df.NumpySerializer.save(ten(), path),
}


@pytest.mark.parametrize("name", PATHS)
def test_paths(name: str) -> None:
    for wrong in (3, None, b"data", [3]):
        with pytest.raises(ConfigError, match="A path must be"):
            PATHS[name](wrong)


def test_a_string_is_one_name(tmp_path: Path) -> None:
    """Its letters are never meant."""
    pairs = df.DataFromArrays({"image": np.arange(3), "label": np.arange(3)})
    df.NumpySerializer.save(pairs, tmp_path / "a.npz")
    assert list(df.NumpyData(tmp_path / "a.npz", "label")) == [(0,), (1,), (2,)]
    pytest.importorskip("h5py")
    df.HDF5Serializer.save(ten(), tmp_path / "a.h5", "label")
    loaded = df.HDF5Serializer.load(tmp_path / "a.h5", "label", shuffle=False)
    assert [int(dp[0]) for dp in loaded] == list(range(10))
    (tmp_path / "images" / "cat").mkdir(parents=True)
    (tmp_path / "images" / "cat" / "1.jpg").write_bytes(b"")
    folder = df.ImageFolder(tmp_path / "images", classes="cat", extensions=".jpg", decode=False)
    assert (folder.classes, len(folder)) == (["cat"], 1)
