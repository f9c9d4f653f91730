"""Messages about bad datapoints advise only what the stage, or the one they name, can be told."""

from __future__ import annotations

import inspect
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

from towerpack._core.errors import MapError, TowerpackError
from towerpack.dataflow import (
    AugmentImageComponent,
    AugmentImageComponents,
    AugmentImageCoordinates,
    BatchByLength,
    BatchData,
    BatchDataByShape,
    CaffeLMDB,
    DataFlow,
    DataFromGenerator,
    DataFromList,
    FilterData,
    ImageCSV,
    ImageFolder,
    ImageFromFile,
    LMDBData,
    LMDBDataDecoder,
    LMDBSerializer,
    MapData,
    MapDataComponent,
    MultiThreadMapData,
    NumpySerializer,
    SelectComponent,
    TFRecordData,
    TFRecordSerializer,
    imgaug,
)
from towerpack.dataflow.formats import FixedFeature, TFRecordWriter

PICTURE = np.zeros((4, 4, 3), np.uint8)
RAGGED = DataFromList([(np.zeros(2), np.zeros(i)) for i in range(2)])
SKIP, CATCH = 'on_error="skip" leaves out', "catch_exceptions=True leaves out"


class OfTheUsers(MapData):
    """Takes nothing but a flow."""

    def __init__(self, ds: DataFlow) -> None:
        super().__init__(ds, fail)


def fail(*arguments: Any) -> Any:
    raise ValueError("bad")


def nothing(*arguments: Any) -> None:
    """Forgets to return."""


def ten() -> DataFlow:
    return DataFromList([[i, PICTURE, np.zeros((1, 2))] for i in range(10)])


def streamed() -> DataFlow:
    return DataFromGenerator(lambda: iter(ten()))


def records(folder: Path) -> Path:
    env = lmdb.open(str(folder / "data.lmdb"), subdir=False, map_size=1 << 20)
    with env.begin(write=True) as txn:
        txn.put(b"0", pickle.dumps([1]))
    env.close()
    return folder / "data.lmdb"


def tfrecords(folder: Path) -> Path:
    with TFRecordWriter(folder / "a.tfrecord") as writer:
        writer.write(b"none of ours")
    return folder / "a.tfrecord"


def damaged_picture(folder: Path) -> Path:
    data = imgaug.encode_jpeg(np.zeros((40, 40, 3), np.uint8))
    (folder / "class").mkdir()
    path = folder / "class" / "a.jpg"
    path.write_bytes(data[: len(data) // 2])
    return path


def csv_of(picture: Path) -> Path:
    path = picture.parent / "list.csv"
    path.write_text(f"{picture},1\n")
    return path


too_large = imgaug.CenterCrop(9)

STAGES: dict[str, tuple[Callable[[DataFlow], DataFlow], str | None]] = {
    "MapData": (lambda ds: MapData(ds, fail), SKIP),
    "MapData, None": (lambda ds: MapData(ds, nothing), SKIP),
    "MapData, batched": (lambda ds: MapData(ds, fail, batched=True), None),
    "MapDataComponent": (lambda ds: MapDataComponent(ds, fail), SKIP),
    "MapDataComponent, index": (lambda ds: MapDataComponent(ds, fail, 7), SKIP),
    "MultiThreadMapData": (lambda ds: MultiThreadMapData(ds, 1, fail), SKIP),
    "FilterData": (lambda ds: FilterData(ds, fail), SKIP),
    "FilterData, None": (lambda ds: FilterData(ds, nothing), SKIP),
    "SelectComponent": (lambda ds: SelectComponent(ds, [7]), None),
    "AugmentImageComponent": (lambda ds: AugmentImageComponent(ds, too_large, 1), CATCH),
    "AugmentImageComponent, None": (
        lambda ds: AugmentImageComponent(ds, imgaug.MapImage(nothing), 1, False),  # type: ignore[arg-type]
        CATCH,
    ),
    "AugmentImageComponents": (lambda ds: AugmentImageComponents(ds, too_large, 1), CATCH),
    "AugmentImageCoordinates": (lambda ds: AugmentImageCoordinates(ds, too_large, 1, 2), CATCH),
    "a subclass": (OfTheUsers, None),
}
FILES: dict[str, tuple[Callable[[Path], DataFlow], Callable[..., Any], str | None]] = {
    "LMDBDataDecoder": (
        lambda d: LMDBDataDecoder(LMDBData(records(d)), fail), LMDBDataDecoder, SKIP
    ),
    "CaffeLMDB": (lambda d: CaffeLMDB(records(d)), CaffeLMDB, SKIP),
    "LMDBSerializer": (lambda d: LMDBSerializer.load(records(d)), LMDBSerializer.load, None),
    "TFRecordSerializer": (
        lambda d: TFRecordSerializer.load(tfrecords(d)), TFRecordSerializer.load, None
    ),
    "TFRecordData": (
        lambda d: TFRecordData(tfrecords(d), {"a": FixedFeature((), np.int64)}), TFRecordData, None
    ),
    "ImageFromFile": (lambda d: ImageFromFile([str(damaged_picture(d))]), ImageFromFile, None),
    "ImageFromFile, many pixels": (
        lambda d: ImageFromFile([str(damaged_picture(d))], max_pixels=9), ImageFromFile, None
    ),
    "ImageFolder": (lambda d: ImageFolder(damaged_picture(d).parents[1]), ImageFolder, None),
    "ImageCSV": (lambda d: ImageCSV(csv_of(damaged_picture(d))), ImageCSV, None),
}  # fmt: skip
STACKING: dict[str, Callable[[], Any]] = {
    "BatchData": lambda: list(BatchData(RAGGED, 2)),
    "BatchDataByShape": lambda: list(BatchDataByShape(RAGGED, 2, 0)),
    "BatchDataByShape, None": lambda: list(BatchDataByShape(DataFromList([(PICTURE, None)]), 1, 0)),
    "BatchByLength": lambda: list(BatchByLength(RAGGED, 2, (4,), pad={0: 0})),
    "MapData": lambda: list(MapData(DataFromGenerator(lambda: iter(RAGGED)), len, batched=True)),
    "NumpySerializer": lambda: NumpySerializer.save(RAGGED, "x.npz"),
}


def check(error: TowerpackError, taker: Callable[..., Any], expected: str | None) -> None:
    """All arguments that the message advises are those of the stage, or of one that it names."""
    fix = error.fix or ""
    assert (expected in fix) if expected else "leaves out" not in fix
    others = (BatchData, MapDataComponent, imgaug.decode_image)
    named = [one for one in others if one.__name__ in fix]
    taken = {name for one in (taker, *named) for name in inspect.signature(one).parameters}
    assert set(re.findall(r"(\w+)=", fix)) <= taken, fix


@pytest.mark.parametrize("source", [ten, streamed])
@pytest.mark.parametrize("case", STAGES)
def test_stages(case: str, source: Callable[[], DataFlow]) -> None:
    make, expected = STAGES[case]
    ds = make(source())
    with pytest.raises(MapError) as caught:
        next(ds.iterate())
    taker = MapData if case == "MultiThreadMapData" else type(ds)
    check(caught.value, taker, expected)


@pytest.mark.parametrize("case", FILES)
def test_files(case: str, tmp_path: Path) -> None:
    make, taker, expected = FILES[case]
    with pytest.raises(TowerpackError) as caught:
        next(make(tmp_path).iterate())
    check(caught.value, taker, expected)
    fix = caught.value.fix or ""
    assert "skip" not in fix or expected or "MapDataComponent" in fix


@pytest.mark.parametrize("case", STACKING)
def test_stacking(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TowerpackError) as caught:
        STACKING[case]()
    check(caught.value, list, None)
