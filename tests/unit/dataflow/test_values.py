"""A datapoint keeps types, dtypes and bytes, however it is read, stored or sent."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shared_workers import shared_workers
from towerpack._core.errors import TowerpackError
from towerpack.dataflow import (
    BatchData,
    BatchDataByShape,
    CacheData,
    ConcatData,
    DataFlow,
    DataFromArrays,
    DataFromGenerator,
    DataFromList,
    DiskCacheData,
    HDF5Data,
    HDF5Serializer,
    JoinData,
    LMDBSerializer,
    LocallyShuffleData,
    MapData,
    NumpySerializer,
    ParquetData,
    PrefetchData,
    RepeatedDataPoint,
    ShardData,
    ShuffleData,
    TarSerializer,
    TFRecordSerializer,
)
from towerpack.dataflow.images import Mosaic
from towerpack.dataflow.testing import check_flow, same_datapoints

COUNT = 6


@pytest.fixture(scope="module", autouse=True)
def _shared_workers() -> Iterator[None]:
    with shared_workers():
        yield


def scalars(dtype: Any) -> list[Any]:
    return list(np.arange(COUNT).astype(dtype))


UNITS: list[Any] = ["s", "ms", "D", "h", "s", "W"]
RECORDS = np.zeros(COUNT, [("a", "i2"), ("b", "U3"), ("c", "f4", (2,))])
RECORDS["a"] = np.arange(COUNT)
VALUES: dict[str, Sequence[Any]] = {
    "bool": [i % 2 == 0 for i in range(COUNT)],
    "int": range(COUNT),
    "large int": [2**62 + i for i in range(COUNT)],
    "float": [i / 3 for i in range(COUNT)],
    "complex": [complex(i, 1) for i in range(COUNT)],
    "str": [f"é{i}\0" for i in range(COUNT)],
    "bytes": [b"\0a\0%d\0" % i for i in range(COUNT)],
    "None": [None] * COUNT,
    "list": [[i, str(i)] for i in range(COUNT)],
    "tuple": [(i, (i,)) for i in range(COUNT)],
    "dict": [{"b": i, "a": [i]} for i in range(COUNT)],
    "mixed": [1, 1.0, True, "1", b"1", None],
    "object": [np.array([i, None, "a"], object) for i in range(COUNT)],
    "0-d": [np.array(i) for i in range(COUNT)],
    "empty": [np.empty((0, i), np.int8) for i in range(COUNT)],
    "ragged": [np.arange(i, dtype=np.uint16) for i in range(COUNT)],
    "large": [np.full((50, 40), i, np.float16) for i in range(COUNT)],
    "Fortran": [np.asfortranarray(np.full((3, 4), i)) for i in range(COUNT)],
    "big-endian": [np.arange(i, i + 3).astype(">i4") for i in range(COUNT)],
    "structured": list(RECORDS),
    "structured array": [RECORDS[i:] for i in range(COUNT)],
    "void": [np.void(b"ab%d" % i) for i in range(COUNT)],
    "masked": [np.ma.array([i, 1], mask=[False, i % 2 == 0]) for i in range(COUNT)],
    "durations": [np.timedelta64(i, unit) for i, unit in enumerate(UNITS)],
    "moments": [np.datetime64(i, unit) for i, unit in enumerate(UNITS)],
    "no time": [np.datetime64("NaT")] * COUNT,
    "str_": scalars("U2"),
    "bytes_": scalars("S2"),
    "nan": [np.float32("nan"), float("nan"), -0.0, 0.0, float("inf"), np.float64("-inf")],
    **{name: scalars(name) for name in ("bool_", "int8", "uint64", "float16", "longdouble", "c8")},
}

Way = Callable[[DataFlow, Path], list[Any]]


def in_numbers(datapoints: Any) -> list[Any]:
    """Datapoints in the order of their numbers, each once."""
    found = {int(dp[0]): dp for dp in datapoints}
    return [found[i] for i in sorted(found)]


def interleaved(ds: DataFlow, _: Path) -> list[Any]:
    return in_numbers(ConcatData([ShardData(ds, 2, 0), ShardData(ds, 2, 1)]))


def second_pass(ds: DataFlow) -> list[Any]:
    list(ds.iterate(seed=0))
    return list(ds.iterate(seed=0))


def saved(serializer: Any, name: str, **options: Any) -> Way:
    def way(ds: DataFlow, folder: Path) -> list[Any]:
        serializer.save(ds, folder / name, **options)
        return list(serializer.load(folder / name, **options))

    return way


def unbatched(ds: DataFlow, _: Path) -> list[Any]:
    return [dp for batch in BatchData(ds, 4, True, stack="list") for dp in zip(*batch, strict=True)]


WAYS: dict[str, Way] = {
    "in order": lambda ds, _: list(ds),
    "in lists": unbatched,
    "shuffled in windows": lambda ds, _: in_numbers(LocallyShuffleData(ds, 4)),
    "repeated": lambda ds, _: list(RepeatedDataPoint(ds, 2))[1::2],
    "shards": interleaved,
    "joined": lambda ds, _: [dp[2:] for dp in JoinData([ds, ds])],
    "cache": lambda ds, _: second_pass(CacheData(ds)),
    "threads": lambda ds, _: list(PrefetchData(ds, num_proc=1, backend="thread")),
    "processes": lambda ds, _: list(PrefetchData(ds, num_proc=1, backend="process")),
    "disk cache": lambda ds, folder: second_pass(DiskCacheData(ds, folder / "cache")),
    "LMDB": lambda ds, folder: list(
        (LMDBSerializer.save(ds, folder / "a"), LMDBSerializer.load(folder / "a", False))[1]
    ),
    "TFRecord": saved(TFRecordSerializer, "b"),
    "TFRecord, pickle": saved(TFRecordSerializer, "c", format="pickle"),
}
PLANNED: dict[str, Way] = {
    "alone": lambda ds, _: [ds.plan().get(i) for i in range(COUNT)],
    "backwards": lambda ds, _: ds.plan().read(np.arange(COUNT)[::-1])[::-1],
    "shuffled": lambda ds, _: in_numbers(ShuffleData(ds)),
}
WRITERS = ("disk cache", "LMDB", "TFRecord")  # which may refuse a type


def same(dp: Any) -> Any:
    return dp


def assert_alike(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert same_datapoints(one, other), f"{one!r} {other!r}"


def check_ways(ways: dict[str, Way], ds: DataFlow, expected: list[Any], folder: Path) -> None:
    for way, read in ways.items():
        try:
            found = read(ds, folder)
        except TowerpackError:
            assert way in WRITERS, way
            continue
        assert_alike(found, expected)


@pytest.mark.parametrize("planned", [True, False])
@pytest.mark.parametrize("name", VALUES)
def test_values(name: str, planned: bool, tmp_path: Path) -> None:
    rows = [(i, value) for i, value in enumerate(VALUES[name])]
    ds = DataFromList(rows) if planned else DataFromGenerator(lambda: iter(rows))
    check_ways(WAYS | PLANNED if planned else WAYS, ds, rows, tmp_path)


BATCHED: dict[str, Callable[[DataFlow], DataFlow]] = {
    "mapped": lambda ds: BatchData(MapData(ds, same), 3),
    "in processes": lambda ds: PrefetchData(BatchData(ds, 3), num_proc=1, backend="process"),
    "cached": lambda ds: BatchData(CacheData(ds), 3),
}


def batches(ds: DataFlow) -> list[Any] | str:
    try:
        return list(ds.iterate(seed=0))
    except TowerpackError as error:
        return type(error).__name__


@pytest.mark.parametrize("name", VALUES)
def test_values_in_batches(name: str) -> None:
    rows = [(value,) for value in VALUES[name]]
    expected = batches(BatchData(DataFromList(rows), 3))
    for source in (DataFromList(rows), DataFromGenerator(lambda: iter(rows))):
        for how, make in BATCHED.items():
            assert same_datapoints(batches(make(source)), expected), how


@pytest.mark.parametrize("dtype", ["?", "i1", "u8", "f2", "c16", "S3", "U3", "m8[s]", "M8[D]", "O"])
@pytest.mark.parametrize("order", ["<", ">"])
def test_rows_of_arrays(dtype: str, order: str, tmp_path: Path) -> None:
    numbers = np.arange(COUNT * 2).reshape(COUNT, 2)
    array = numbers.astype(dtype).astype(np.dtype(dtype).newbyteorder(order))
    if pickle.loads(pickle.dumps(array, 5)).dtype != array.dtype:
        pytest.skip("NumPy's pickles of dates forget the byte order")
    for rows in (array, array[:, 0].copy()):
        check_rows(rows, tmp_path / str(rows.ndim))


def test_rows_of_structured_arrays(tmp_path: Path) -> None:
    check_rows(RECORDS, tmp_path / "a")
    check_rows(RECORDS.view(np.recarray), tmp_path / "b")


def check_rows(array: np.ndarray[Any, Any], folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    ds = DataFromArrays(np.arange(COUNT), array)
    check_flow(lambda: ds)
    expected = list(ds)
    check_ways(WAYS | PLANNED, ds, expected, folder)
    whole = batches(BatchData(ds, 3))
    for how, make in BATCHED.items():
        assert same_datapoints(batches(make(ds)), whole), how
    in_order = DataFromGenerator(lambda: iter(expected))
    assert same_datapoints(batches(BatchData(in_order, 3)), whole)


def test_structured_rows_of_two_layouts_are_not_mixed_up() -> None:
    other = np.ones(COUNT, [("x", "f8"), ("y", "f8"), ("z", "f8"), ("w", "f4")])
    fields = np.ones(COUNT, [("w", "f4"), ("x", "f8"), ("y", "f8"), ("z", "f8")])
    ds = ConcatData([DataFromArrays(other), DataFromArrays(fields)])
    check_flow(lambda: ds)


# ------------------------------------------------------------------ masks


MASKED = np.ma.array([[1, 2], [3, 4]], mask=[[False, True], [True, False]])


@pytest.mark.parametrize(
    "read",
    [
        lambda _: DataFromArrays(MASKED),
        lambda _: DataFromArrays({"a": MASKED}),
        lambda _: list(BatchData(DataFromList([(row,) for row in MASKED]), 2)),
        lambda _: list(BatchData(DataFromList([([row],) for row in MASKED]), 2)),
        lambda _: list(BatchDataByShape(DataFromList([(row,) for row in MASKED]), 2, 0)),
        lambda _: list(MapData(DataFromArrays(np.ones(2)), lambda dp: (MASKED,), batched=True)),
        lambda path: TarSerializer.save(DataFromList([{"npy": MASKED}]), path / "a.tar"),
        lambda path: NumpySerializer.save(DataFromList([(MASKED,)]), path / "a.npz"),
        lambda path: HDF5Serializer.save(DataFromList([(MASKED,)]), path / "a.h5", ["a"]),
        lambda path: LMDBSerializer.save(DataFromList([(MASKED,)]), path / "a"),
        lambda path: LMDBSerializer.save(
            DataFromList([{"a": MASKED}]), path / "a", format="example"
        ),
    ],
)
def test_masks_are_never_dropped(tmp_path: Path, read: Callable[[Path], Any]) -> None:
    with pytest.raises(TowerpackError, match=r"[Mm]ask"):
        read(tmp_path)


# ------------------------------------------------------------------ files


def test_hdf5(tmp_path: Path) -> None:
    texts = ["ab", "é", ""]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["fixed"] = np.array([b"ab", b"c", b""])
        file["fixed utf-8"] = np.array([t.encode() for t in texts]).astype(
            h5py.string_dtype("utf-8", 4)
        )
        file["variable"] = np.array(texts, h5py.string_dtype())
        file["table"] = np.array([[b"ab", b"c"]] * 3)
        file["scalar"] = np.arange(3, dtype=">i2")
        file["bool"] = np.array([True, False, True])
        file["records"] = np.zeros(3, [("a", "i4"), ("b", "S3")])
        file["enum"] = np.array([0, 1, 0], h5py.enum_dtype({"A": 0, "B": 1}, "i1"))
        rows = file.create_dataset("ragged", (3,), h5py.vlen_dtype(np.int32))
        for i in range(3):
            rows[i] = np.arange(i)
        names = list(file)
    for name in names:
        check_flow(lambda name=name: HDF5Data(tmp_path / "a.h5", [name], shuffle=False))
        in_order = list(HDF5Data(tmp_path / "a.h5", [name], shuffle=False))
        shuffled = HDF5Data(tmp_path / "a.h5", [name])
        assert sorted(map(repr, shuffled)) == sorted(map(repr, in_order)), name


NUMBERS = [pa.int8(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.bool_()]


@pytest.mark.parametrize(
    "kind", [*NUMBERS, *(make(kind) for kind in NUMBERS for make in (pa.list_, pa.large_list))]
)
@pytest.mark.parametrize("group", [1, 2, 5])
def test_a_null_changes_no_other_row(tmp_path: Path, kind: Any, group: int) -> None:
    listed = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    number = kind.value_type if listed else kind
    make = bool if number == pa.bool_() else np.float16 if number == pa.float16() else int
    rows: list[Any] = [[make(i), make(0)] if listed else make(i) for i in range(5)]
    pq.write_table(pa.table({"x": pa.array(rows, kind)}), tmp_path / "a", row_group_size=group)
    rows[2] = None
    pq.write_table(pa.table({"x": pa.array(rows, kind)}), tmp_path / "b", row_group_size=group)
    whole, nullable = (list(ParquetData(tmp_path / name, ["x"])) for name in "ab")
    assert nullable.pop(2) == (None,)
    assert_alike(nullable, whole[:2] + whole[3:])
    check_flow(lambda: ParquetData(tmp_path / "b", ["x"]))


# ------------------------------------------------------------------ pictures without objects


@pytest.mark.parametrize("empty", [lambda: np.array([]), lambda: np.empty((0, 4)), list])
@pytest.mark.parametrize("dtype", [np.int64, np.uint8])
def test_pictures_without_objects_in_a_mosaic(empty: Callable[[], Any], dtype: Any) -> None:
    rows: list[Any] = []
    for i in range(12):
        boxes = np.array([[1, 1, 15, 15]], np.float32) if i % 3 else empty()
        labels = np.array([i], dtype) if i % 3 else np.array([])
        rows.append((np.zeros((16, 16, 3), np.uint8), boxes, labels))
    for _, boxes, labels in Mosaic(DataFromList(rows), 32, min_visible=0).iterate(seed=1):
        if len(labels):
            assert (boxes.dtype, boxes.shape[1:], labels.dtype) == (np.float32, (4,), dtype)


def test_labels_of_two_types_in_a_mosaic() -> None:
    image, box = np.zeros((16, 16, 3), np.uint8), np.array([[1.0, 1, 15, 15]])
    rows = [(image, box, np.array([i], "i4" if i % 2 else "i8")) for i in range(8)]
    with pytest.raises(TowerpackError, match="must have the same dtype"):
        list(Mosaic(DataFromList(rows), 32))
