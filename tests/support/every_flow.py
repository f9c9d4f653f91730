"""One or more small cases of every public flow, for tests of what all flows have in common."""

from __future__ import annotations

import gzip
import importlib
import pkgutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

import towerpack.dataflow
from dataset_files import idx_bytes, mat_bytes, picture, tar_bytes
from small_flows import (
    Counting,
    Indexed,
    Noise,
    Twice,
    heads,
    length,
    noisy,
    noisy_rows,
    not_third,
    pair,
    ragged,
    refuse_thirds,
    shaped,
    shift,
    tokens,
)
from towerpack import dataflow as df
from towerpack.dataflow import datasets as sets
from towerpack.dataflow.formats import (
    CaffeLMDB,
    DiskCacheData,
    LMDBData,
    LMDBDataDecoder,
    LMDBSerializer,
    TFRecordData,
    TFRecordWriter,
    encode_example,
)
from towerpack.dataflow.testing import same_datapoints

Source = Callable[[int], df.DataFlow]
Make = Callable[[Source], df.DataFlow]

NO_CASE: dict[type[df.DataFlow], str] = {
    df.Stage: "has no data of its own",
    df.DataFromQueue: "what was taken from a queue cannot be taken again",
    df.RemoteDataZMQ: "takes what others send; remote/test_remote.py has its laws",
    sets.CifarBase: "has no data of its own",
}


def public_flows() -> dict[type[df.DataFlow], str]:
    """Every flow that has a public name, with that name."""
    package = towerpack.dataflow
    found: dict[type[df.DataFlow], str] = {}
    modules = [package.__name__]
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not any(part.startswith("_") for part in info.name.split(".")):
            modules.append(info.name)
    for module in modules:
        imported = importlib.import_module(module)
        for name in dir(imported):  # which also lists names that are loaded when they are used
            value = getattr(imported, name)
            if not isinstance(value, type) or not issubclass(value, df.DataFlow) or name[0] == "_":
                continue
            # Modules that packages share import flows that have no public name.
            if hasattr(imported, "__path__") or value.__module__ == module:
                found.setdefault(value, f"{module}.{name}")
    return found


def pictured(dp: Any) -> Any:
    """An image, a box, its label, two points, and a label of the image."""
    i = int(dp[0])
    image = np.arange(16 * 20 * 3, dtype=np.uint8).reshape(16, 20, 3) + np.uint8(i)
    box = np.array([[2.0, 3.0, 14.0 + i % 5, 12.0]])
    points = np.array([[1.0, 2.0], [i % 9, 5.0]])
    return [image, box, np.array([i]), points, np.int64(i)]


def packed_state(iterator: df.DataIterator) -> Any:
    """Where a pass is, as it was written to a file and read."""
    return msgpack.unpackb(msgpack.packb(iterator.state()))


def assert_same(found: list[Any], expected: list[Any], where: str) -> None:
    """Two lists of datapoints."""
    assert len(found) == len(expected), where
    for index, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert same_datapoints(one, other), f"{where}: {index} is {one!r}, expected {other!r}"


# What stages are put on.


def planned(n: int) -> df.DataFlow:
    """Has a plan."""
    arrays = df.DataFromArrays(np.arange(n), np.arange(n) * 0.5)
    return df.MapData(df.ShuffleData(arrays), noisy, rng=True)


def in_order(n: int) -> df.DataFlow:
    """Can only be read in order; of known length."""
    return df.MapData(df.DataFromIterable([pair(i, i * 0.5) for i in range(n)]), noisy, rng=True)


@dataclass(frozen=True)
class Case:
    """A flow to be tested.

    Attributes:
        flow: Its class.
        make: From what makes what it wraps to the flow.
        plain: The same, made without parallel stages; `make`, if there is none in it.
        needs_plan: It cannot be put on what can only be read in order.
    """

    flow: type[df.DataFlow]
    make: Make
    plain: Make
    needs_plan: bool = False


def _cases(
    flow: type[df.DataFlow], plain: Make | None = None, *, needs_plan: bool = False, **makes: Make
) -> dict[str, Case]:
    """Cases of one class."""
    return {
        f"{flow.__name__} {name}".strip(" _"): Case(flow, make, plain or make, needs_plan)
        for name, make in makes.items()
    }


def _images(source: Source, n: int = 9) -> df.DataFlow:
    return df.MapData(source(n), pictured)


def _pairs(n: int) -> df.DataFlow:
    return df.DataFromArrays(np.arange(n), np.arange(n) * 0.5)


_AUGMENTORS = [
    df.images.RandomCrop((12, 14)),
    df.images.Flip(horiz=True),
    df.images.Brightness(20),
    df.images.Resize((10, 9)),
]

STAGES: dict[str, Case] = {
    **_cases(
        df.MapData,
        _=lambda source: df.MapData(source(11), shift),
        rng=lambda source: df.MapData(source(11), noisy, rng=True),
        rows=lambda source: df.MapData(source(11), noisy_rows, rng=True, batched=True),
        skip=lambda source: df.MapData(source(11), refuse_thirds, on_error="skip"),
        skip_some=lambda source: df.MapData(
            source(11), refuse_thirds, on_error="skip", max_errors=30
        ),
        ragged=lambda source: df.MapData(source(11), ragged),
        of_skipping=lambda source: df.MapData(
            df.MapData(source(11), refuse_thirds, on_error="skip"), noisy, rng=True
        ),
        of_batches=lambda source: df.MapData(df.BatchData(source(11), 3), noisy, rng=True),
        batch_mix=lambda source: df.MapData(
            df.BatchData(df.SelectComponent(_images(source), [0, 4]), 3),
            df.images.CutMix(1.0, 20),
            rng=True,
        ),
    ),
    **_cases(df.MapDataComponent, _=lambda source: df.MapDataComponent(source(11), np.negative, 1)),
    **_cases(
        df.FilterData,
        _=lambda source: df.FilterData(source(11), not_third),
        rng=lambda source: df.FilterData(source(11), heads, rng=True),
        skip=lambda source: df.FilterData(source(11), refuse_thirds, on_error="skip"),
    ),
    **_cases(df.SelectComponent, _=lambda source: df.SelectComponent(source(11), [1, 0])),
    **_cases(df.ShuffleData, needs_plan=True, _=lambda source: df.ShuffleData(source(11))),
    **_cases(
        df.LocallyShuffleData,
        _=lambda source: df.LocallyShuffleData(source(11), 4),
        reusing=lambda source: df.LocallyShuffleData(source(11), 4, 2),
    ),
    **_cases(
        df.BatchData,
        _=lambda source: df.BatchData(source(11), 3),
        remainder=lambda source: df.BatchData(source(11), 4, remainder=True),
        of_skipping=lambda source: df.BatchData(
            df.MapData(
                df.LocallyShuffleData(df.MapData(source(13), refuse_thirds, on_error="skip"), 5),
                noisy,
                rng=True,
            ),
            3,
            remainder=True,
        ),
        lists=lambda source: df.BatchData(df.MapData(source(11), ragged), 4, stack="list"),
        padded=lambda source: df.BatchData(df.MapData(source(11), shaped), 4, pad=-1.0),
        mapped=lambda source: df.MapData(
            df.BatchData(df.MapData(source(11), noisy, rng=True), 4, remainder=True),
            noisy,
            rng=True,
        ),
    ),
    **_cases(
        df.BatchDataByShape,
        _=lambda source: df.BatchDataByShape(df.MapData(source(13), shaped), 3, 1),
        few=lambda source: df.BatchDataByShape(df.MapData(source(13), shaped), 4, 1, max_waiting=4),
    ),
    **_cases(
        df.BatchByLength,
        _=lambda source: df.BatchByLength(source(13), 3, [2, 6], length=length),
        whole=lambda source: df.BatchByLength(
            source(13), [2, 3], [4], length=length, remainder=False
        ),
    ),
    **_cases(
        df.PackSequences,
        _=lambda source: df.PackSequences(df.MapData(source(13), tokens), 7, window=4),
        split=lambda source: df.PackSequences(df.MapData(source(13), tokens), 3, long="split"),
    ),
    **_cases(
        df.RepeatedData,
        _=lambda source: df.RepeatedData(source(7), 2),
        for_ever=lambda source: df.RepeatedData(source(7), -1),
        batches=lambda source: df.RepeatedData(
            df.BatchData(df.MapData(source(7), noisy, rng=True), 3, remainder=True), 2
        ),
    ),
    **_cases(
        df.FixedSizeData,
        _=lambda source: df.FixedSizeData(source(11), 7),
        afresh=lambda source: df.FixedSizeData(source(11), 7, keep_state=False),
        longer=lambda source: df.FixedSizeData(source(5), 8),
    ),
    **_cases(df.RepeatedDataPoint, _=lambda source: df.RepeatedDataPoint(source(7), 3)),
    **_cases(
        df.ShardData,
        _=lambda source: df.ShardData(source(11), 2, 1),
        uneven=lambda source: df.ShardData(source(11), 3, 0, tail="uneven"),
        padded=lambda source: df.ShardData(source(11), 4, 3, tail="pad"),
    ),
    **_cases(
        df.WithoutRows,
        needs_plan=True,
        _=lambda source: df.WithoutRows(source(11), [0, 7]),
    ),
    **_cases(
        df.WeightedData,
        _=lambda _: df.MapData(df.WeightedData(_pairs(7), [3, 0, 1, 2, 1, 5, 1]), noisy, rng=True),
        once=lambda _: df.WeightedData(_pairs(7), [3, 0, 1, 2, 1, 5, 1], replacement=False),
        balanced=lambda _: df.WeightedData(_pairs(4), "balanced", labels=list("abbb"), size=11),
    ),
    **_cases(df.ShardRows, _=lambda source: df.ShardRows(df.BatchData(source(17), 4), 2, 1)),
    **_cases(
        df.CacheData,
        _=lambda source: df.CacheData(source(11)),
        shuffled=lambda source: df.CacheData(source(11), shuffle=True),
    ),
    **_cases(DiskCacheData, _=lambda source: DiskCacheData(source(11), tempfile.mkdtemp(), seed=5)),
    **_cases(df.PrintData, _=lambda source: df.PrintData(source(11), 0)),
    **_cases(df.TestDataSpeed, _=lambda source: df.TestDataSpeed(source(11))),
    **_cases(
        df.ProxyDataFlow,
        _=lambda source: df.ProxyDataFlow(source(11)),
        twice=lambda source: Twice(source(7)),
    ),
    **_cases(
        df.JoinData,
        _=lambda source: df.JoinData([source(9), source(7)]),
        itself=lambda source: df.JoinData([one := source(7), one]),
        mixed=lambda source: df.JoinData([source(7), Noise(8)]),
    ),
    **_cases(
        df.ConcatData,
        _=lambda source: df.ConcatData([source(5), source(6)]),
        itself=lambda source: df.ConcatData([one := source(5), one]),
        mixed=lambda source: df.ConcatData([Indexed(2), source(5), Counting(3)]),
    ),
    **_cases(
        df.MixData,
        _=lambda source: df.MixData([source(5), source(9)], [1, 2]),
        all=lambda source: df.MixData([source(5), Counting(4), source(6)], stop="all"),
        for_ever=lambda source: df.MixData([source(5), source(3)], stop="repeat"),
    ),
    **_cases(
        df.RandomChooseData,
        _=lambda source: df.RandomChooseData([(source(9), 0.7), (source(6), 0.3)]),
    ),
    **_cases(df.RandomMixData, _=lambda source: df.RandomMixData([source(4), source(7)])),
    **_cases(
        df.AugmentImageComponent,
        _=lambda source: df.AugmentImageComponent(_images(source), _AUGMENTORS),
        skip=lambda source: df.AugmentImageComponent(
            _images(source), _AUGMENTORS, catch_exceptions=True
        ),
    ),
    **_cases(
        df.AugmentImageComponents,
        _=lambda source: df.AugmentImageComponents(_images(source), _AUGMENTORS, (0,), boxes=(1,)),
    ),
    **_cases(
        df.AugmentImageCoordinates,
        _=lambda source: df.AugmentImageCoordinates(_images(source), _AUGMENTORS, 0, 3),
    ),
    **_cases(
        df.images.Mosaic, needs_plan=True, _=lambda source: df.images.Mosaic(_images(source), 32)
    ),
    **_cases(
        df.PrefetchData,
        lambda source: source(11),
        _=lambda source: df.PrefetchData(source(11)),
        one_ahead=lambda source: df.PrefetchData(source(11), 1),
        copied=lambda source: df.PrefetchData(source(11), copy=True),
        restarting=lambda source: df.PrefetchData(source(11), on_worker_death="restart"),
        twice=lambda source: df.PrefetchData(df.PrefetchData(source(11)), backend="thread"),
    ),
    **_cases(
        df.MultiProcessRunnerZMQ,
        lambda source: source(11),
        _=lambda source: df.MultiProcessRunnerZMQ(source(11), 2, hwm=3),
    ),
    **_cases(
        df.MultiThreadRunner,
        lambda source: source(11),
        _=lambda source: df.MultiThreadRunner(lambda: source(11), num_prefetch=3),
    ),
    **_cases(
        df.MultiProcessMapData,
        lambda source: df.MapData(source(11), noisy, rng=True),
        _=lambda source: df.MultiProcessMapData(source(11), 2, noisy, rng=True),
        few=lambda source: df.MultiProcessMapData(source(11), 2, noisy, 2, True, rng=True),
    ),
    **_cases(
        df.MultiProcessMapData,
        lambda source: df.MapData(source(11), refuse_thirds, on_error="skip"),
        skip=lambda source: df.MultiProcessMapData(source(11), 2, refuse_thirds, on_error="skip"),
    ),
    **_cases(
        df.MultiThreadMapData,
        lambda source: df.MapData(source(11), noisy, rng=True),
        _=lambda source: df.MultiThreadMapData(source(11), 2, noisy, rng=True),
    ),
    **_cases(
        df.MultiProcessMapAndBatchData,
        lambda source: df.BatchData(df.MapData(source(11), noisy, rng=True), 3),
        _=lambda source: df.MultiProcessMapAndBatchData(source(11), 2, noisy, 3, rng=True),
    ),
    **_cases(
        df.MultiProcessMapAndBatchData,
        lambda source: df.BatchData(df.MapData(source(11), shift), 4, remainder=True),
        remainder=lambda source: df.MultiProcessMapAndBatchData(
            source(11), 2, shift, 4, buffer_size=8, remainder=True
        ),
    ),
}


# Sources.


def random_pairs(rng: np.random.Generator) -> Iterator[Any]:
    """A generator that draws."""
    for i in range(9):
        yield pair(i, rng.random())


SOURCES: dict[str, tuple[type[df.DataFlow], Callable[[Path], df.DataFlow]]] = {
    "DataFlow indexed": (df.DataFlow, lambda _: Indexed(11)),
    "DataFlow in order": (df.DataFlow, lambda _: Counting(11)),
    "RNGDataFlow": (df.RNGDataFlow, lambda _: Noise(11)),
    "DataFromArrays": (df.DataFromArrays, lambda _: df.DataFromArrays(np.arange(11), np.eye(11))),
    "DataFromArrays large": (
        df.DataFromArrays,
        lambda _: df.DataFromArrays(np.arange(11 * 5000).reshape(11, 5000), np.array(["ä"] * 11)),
    ),
    "DataFromList": (
        df.DataFromList,
        lambda _: df.DataFromList([ragged(pair(i, i)) for i in range(11)], shuffle=True),
    ),
    "DataFromList long": (
        df.DataFromList,
        lambda _: df.FixedSizeData(df.DataFromList([(i, str(i)) for i in range(1100)]), 20),
    ),
    "DataFromGenerator": (
        df.DataFromGenerator,
        lambda _: df.DataFromGenerator(random_pairs, rng=True),
    ),
    "DataFromIterable": (
        df.DataFromIterable,
        lambda _: df.DataFromIterable([ragged(pair(i, i)) for i in range(11)]),
    ),
    "FakeData": (
        df.FakeData,
        lambda _: df.FakeData([[3, 2], []], 11, dtype=["uint8", "float32"], domain=(0, 99)),
    ),
    "ImageCSV": (df.ImageCSV, lambda folder: df.ImageCSV(folder / "images.csv", shuffle=True)),
    "ImageFolder": (
        df.ImageFolder,
        lambda folder: df.ImageFolder(folder / "classes", shuffle=True),
    ),
    "ImageFromFile": (
        df.ImageFromFile,
        lambda folder: df.ImageFromFile(sorted((folder / "classes").rglob("*.png")), resize=(4, 5)),
    ),
    "HDF5Data": (df.HDF5Data, lambda folder: df.HDF5Data(folder / "a.h5", ["x", "y"])),
    "NumpyData": (df.NumpyData, lambda folder: df.NumpyData(folder / "a.npz")),
    "ParquetData": (df.ParquetData, lambda folder: df.ParquetData(folder / "a.parquet")),
    "TableData": (df.TableData, lambda folder: df.TableData(folder / "a.csv", ["s", "i"])),
    "HFData": (df.HFData, lambda folder: df.HFData(_hugging_face(folder))),
    "SQLData": (
        df.SQLData,
        lambda folder: df.SQLData(lambda: sqlite3.connect(folder / "a.db"), "a", "i"),
    ),
    "SVMLightData": (df.SVMLightData, lambda folder: df.SVMLightData(folder / "a.svm")),
    "TarData": (df.TarData, lambda folder: df.TarData(folder / "a.tar", decode=True)),
    "TarData in order": (df.TarData, lambda folder: df.TarData(folder / "a.tar.gz")),
    "TarData saved": (df.TarData, lambda folder: df.TarSerializer.load(folder / "saved.tar")),
    "LMDBData": (LMDBData, lambda folder: LMDBData(folder / "a.lmdb")),
    "LMDBDataDecoder": (
        LMDBDataDecoder,
        lambda folder: LMDBDataDecoder(
            LMDBData(folder / "a.lmdb"), lambda key, value: [value, key]
        ),
    ),
    "LMDB saved": (LMDBData, lambda folder: LMDBSerializer.load(folder / "a.lmdb")),
    "CaffeLMDB": (CaffeLMDB, lambda folder: CaffeLMDB(folder / "caffe.lmdb")),
    "TFRecordData": (TFRecordData, lambda folder: TFRecordData(folder / "a.tfrecord", {})),
    "TFRecordData in order": (TFRecordData, lambda folder: TFRecordData(folder / "a.tfrecord.gz")),
    "Mnist": (sets.Mnist, lambda folder: sets.Mnist("train", dir=folder / "mnist")),
    "FashionMnist": (
        sets.FashionMnist,
        lambda folder: sets.FashionMnist("train", False, folder / "mnist"),
    ),
    "Cifar10": (sets.Cifar10, lambda folder: sets.Cifar10("test", dir=folder / "cifar")),
    "Cifar100": (sets.Cifar100, lambda folder: sets.Cifar100("test", dir=folder / "cifar")),
    "SVHNDigit": (sets.SVHNDigit, lambda folder: sets.SVHNDigit("test", folder)),
    "Caltech101Silhouettes": (
        sets.Caltech101Silhouettes,
        lambda folder: sets.Caltech101Silhouettes("val", dir=folder),
    ),
    "Digits": (sets.Digits, lambda _: df.FixedSizeData(sets.Digits("val"), 12)),
    "ILSVRC12": (
        sets.ILSVRC12,
        lambda folder: sets.ILSVRC12(folder / "ilsvrc", "train", folder / "ilsvrc/meta"),
    ),
    "ILSVRC12Files": (
        sets.ILSVRC12Files,
        lambda folder: sets.ILSVRC12Files(folder / "ilsvrc", "train", folder / "ilsvrc/meta"),
    ),
    "TinyImageNet": (sets.TinyImageNet, lambda folder: sets.TinyImageNet(folder / "tiny")),
    "Places365Standard": (
        sets.Places365Standard,
        lambda folder: sets.Places365Standard(folder / "places", "train"),
    ),
    "BSDS500": (sets.BSDS500, lambda folder: sets.BSDS500("train", folder)),
}


def _hugging_face(folder: Path) -> Any:
    import datasets

    return datasets.load_from_disk(folder / "hugging_face").select([*range(10, 1, -1)])


# The files that they read.


def write_files(folder: Path) -> None:
    """What the cases need."""
    _write_arrays(folder)
    _write_records(folder)
    _write_array_sets(folder)
    _write_image_sets(folder)


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _write_arrays(folder: Path) -> None:
    import datasets
    import h5py
    import pyarrow as pa
    import pyarrow.csv as csv
    import pyarrow.parquet as pq

    columns = {"x": np.arange(22.0).reshape(11, 2), "y": np.arange(11, dtype=np.uint8)}
    np.savez(folder / "a.npz", **columns)
    with h5py.File(folder / "a.h5", "w") as file:
        file.update(columns)
    table = pa.table({"i": np.arange(11), "s": [str(i) for i in range(11)]})
    pq.write_table(table, folder / "a.parquet", row_group_size=4)
    datasets.disable_progress_bars()
    datasets.Dataset(table).save_to_disk(folder / "hugging_face")
    csv.write_csv(table, folder / "a.csv")
    with closing(sqlite3.connect(folder / "a.db")) as connection:
        connection.execute("CREATE TABLE a (i INTEGER PRIMARY KEY, s TEXT)")
        connection.executemany("INSERT INTO a (s) VALUES (?)", [("ä",)] * 11)
        connection.commit()
    lines = [f"{i % 2} {1 + i % 3}:{i}.5\n" for i in range(11)]
    (folder / "a.svm").write_text("".join(lines))


def _write_records(folder: Path) -> None:
    import lmdb

    files = {f"{i}.{kind}": f"{i}".encode() for i in range(9) for kind in ("cls", "txt")}
    _write(folder / "a.tar", tar_bytes(files, "w"))
    _write(folder / "a.tar.gz", tar_bytes(files))
    saved = df.DataFromList([{"txt": str(i), "npy": np.arange(i)} for i in range(9)])
    df.TarSerializer.save(saved, folder / "saved.tar")
    flow = df.DataFromList([(i, np.full(i, i), "ä" * i) for i in range(9)])
    LMDBSerializer.save(flow, folder / "a.lmdb")
    with (
        lmdb.open(str(folder / "caffe.lmdb"), subdir=False, lock=False) as env,
        env.begin(write=True) as txn,
    ):
        for i in range(9):
            # A Datum: channels, height, width, data, label.
            image = bytes(range(i, i + 60))
            txn.put(b"%08d" % i, b"\x08\x03\x10\x04\x18\x05\x22\x3c" + image + b"\x28%c" % i)
    for name, compression in (("a.tfrecord", None), ("a.tfrecord.gz", "gzip")):
        with TFRecordWriter(folder / name, compression=compression) as writer:
            for i in range(9):
                writer.write(encode_example({"i": i, "s": b"x" * i}))


def _write_array_sets(folder: Path) -> None:
    rng = np.random.default_rng(0)
    digits = rng.integers(0, 256, (10, 28, 28), np.uint8)
    _write(folder / "mnist/train-images-idx3-ubyte", gzip.decompress(idx_bytes(digits)))
    _write(folder / "mnist/train-labels-idx1-ubyte.gz", idx_bytes(np.arange(10, dtype=np.uint8)))
    rows = rng.integers(0, 10, (7, 3074), np.uint8)
    _write(folder / "cifar/cifar-10-batches-bin/test_batch.bin", rows[:, 1:].tobytes())
    _write(folder / "cifar/cifar-100-binary/test.bin", rows.tobytes())
    labels = (np.arange(7, dtype=np.uint8) % 10 + 1)[:, None]
    colours = rng.integers(0, 256, (32, 32, 3, 7), np.uint8)
    _write(folder / "test_32x32.mat", mat_bytes({"X": colours, "y": labels}))
    shapes = rng.integers(0, 2, (7, 784), np.uint8)
    variables = {"classnames": np.array([["a", "b"]], object)}
    for part in ("train", "val", "test"):
        variables |= {f"{part}_data": shapes, f"{part}_labels": labels}
    _write(folder / "caltech101_silhouettes_28_split1.mat", mat_bytes(variables))


def _write_image_sets(folder: Path) -> None:
    wnids = ["n01440764", "n01443537"]
    rows: list[str] = []
    train: list[str] = []
    places: list[str] = []
    for i in range(8):
        wnid = wnids[i % 2]
        image = picture(6 + i, 9, (30 * i, 100, 200), ".png")
        _write(folder / f"classes/{i % 3}/{i}.png", image)
        rows.append(f"classes/{i % 3}/{i}.png,{i}")
        _write(folder / f"ilsvrc/train/{wnid}/{wnid}_{i}.JPEG", picture(9, 8, (9 * i, 0, 0)))
        train.append(f"{wnid}/{wnid}_{i}.JPEG {i % 2}")
        tiny = folder / f"tiny/train/{wnid}/images/{wnid}_{i}.JPEG"
        _write(tiny, picture(64, 64, (i, 200, 9)))
        _write(folder / f"places/train/c{i % 3}/{i}.jpg", picture(12, 12, (i, 9, 99)))
        places.append(f"train/c{i % 3}/{i}.jpg")
    (folder / "images.csv").write_text("\n".join(rows))
    lists = {"synsets": wnids, "synset_words": wnids, "train": train, "val": [], "test": []}
    for name, lines in lists.items():
        _write(folder / f"ilsvrc/meta/{name}.txt", "\n".join(lines).encode())
    _write(folder / "tiny/wnids.txt", "\n".join(wnids).encode())
    _write(folder / "places/train.txt", "\n".join(places).encode())
    _write_outlines(folder / "BSR/BSDS500/data")


def _write_outlines(folder: Path) -> None:
    for i in range(3):
        cell = np.empty((1, 1), object)
        drawn = np.zeros((321, 481), bool)
        drawn[i] = True
        cell[0, 0] = {"Segmentation": drawn.astype(np.uint16), "Boundaries": drawn}
        _write(folder / f"groundTruth/train/{i}.mat", mat_bytes({"groundTruth": cell}))
        _write(folder / f"images/train/{i}.jpg", picture(321, 481, (60 * i, 9, 9)))
