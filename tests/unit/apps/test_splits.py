"""Training, validation and test data: which row is in which split."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from towerpack import ConfigError
from towerpack.apps import detection, segmentation, style_transfer, text_classification
from towerpack.apps._splits import held_out, subset
from towerpack.apps.classification import DataConfig, ImageInputter, Pictures, augmenters
from towerpack.apps.classification import make_inputter as make_pictures
from towerpack.apps.text_generation import TextGenerationConfig
from towerpack.apps.text_generation import TextInputter as StreamInputter
from towerpack.dataflow.formats import TFRecordWriter, encode_example

Make = Callable[[Path, list[int]], Any]


def touch(file: Path, text: str = "") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


PICTURE = cv2.imencode(".png", np.zeros([9, 9], np.uint8))[1].tobytes()


def picture(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(PICTURE)


def folder(root: Path, rows: list[int]) -> Any:
    for i in rows:
        touch(root / f"{'ab'[i % 2]}/{i}.png")
    return make_pictures(DataConfig(inputter="folder", path=str(root)))


def csv(root: Path, rows: list[int]) -> Any:
    for i in rows:
        touch(root / f"{i}.png")
    touch(root / "train.csv", "".join(f"{i}.png,{'ab'[i % 2]}\n" for i in sorted(rows)))
    return make_pictures(DataConfig(inputter="csv", path=str(root)))


def records(root: Path, rows: list[int]) -> Any:
    root.mkdir(parents=True, exist_ok=True)
    with TFRecordWriter(root / "train.tfrecord") as writer:
        for i in rows:
            example = {"image/encoded": b"x", "image/class/label": i % 2}
            writer.write(encode_example(example))
    return make_pictures(DataConfig(inputter="tfrecord", path=str(root), num_classes=2))


def arrays(root: Path, rows: list[int]) -> Any:
    class Noise(ImageInputter):
        takes = frozenset({"validation"})

        def find(self) -> Any:
            images = [
                np.random.default_rng(i % 9999).integers(0, 256, (4, 4), np.uint8) for i in rows
            ]
            labels = np.array(rows) % 2
            return ["a", "b"], {"train": Pictures(np.array(images), labels)}

    return Noise(DataConfig(), augmenters.none)


def coco(root: Path, rows: list[int]) -> Any:
    images = [{"id": i, "file_name": f"{i}.png", "width": 9, "height": 9} for i in rows]
    boxes = [{"id": i, "image_id": i, "category_id": 1, "bbox": [1, 1, 5, 5]} for i in rows]
    content = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "a"}]}
    touch(root / "train.json", json.dumps(content))
    for i in rows:
        picture(root / f"images/{i}.png")
    return detection.make_inputter(detection.DataConfig(inputter="coco", path=str(root)))


def voc(root: Path, rows: list[int]) -> Any:
    for i in rows:
        box = "<xmin>1</xmin><ymin>1</ymin><xmax>5</xmax><ymax>5</ymax>"
        found = f"<object><name>a</name><bndbox>{box}</bndbox></object>"
        size = "<size><width>9</width><height>9</height></size>"
        text = f"<annotation><filename>{i}.png</filename>{size}{found}</annotation>"
        touch(root / f"boxes/{i}.xml", text)
        picture(root / f"boxes/{i}.png")
    data = detection.DataConfig(inputter="voc", path=str(root), train="boxes")
    return detection.make_inputter(data)


def yolo(root: Path, rows: list[int]) -> Any:
    for i in rows:
        picture(root / f"images/train/{i}.png")
        touch(root / f"labels/train/{i}.txt", "0 0.5 0.5 0.2 0.2\n")
    data = detection.DataConfig(inputter="yolo", path=str(root), class_names=["a"])
    return detection.make_inputter(data)


def scenes(root: Path, rows: list[int]) -> Any:
    for i in rows:
        picture(root / f"{i}.png")
    touch(root / "train.csv", "".join(f"{i}.png,{i}.png\n" for i in sorted(rows)))
    data = segmentation.DataConfig(path=str(root), class_names=["a", "b"])
    return segmentation.make_inputter(data)


def photos(root: Path, rows: list[int]) -> Any:
    for i in rows:
        touch(root / f"{i}.png")
    return style_transfer.make_inputter(style_transfer.DataConfig(path=str(root)))


def texts(root: Path, rows: list[int]) -> Any:
    lines = [f"word {i},{'ab'[i % 2]}" for i in sorted(rows)]
    touch(root / "train.csv", "\n".join(["text,label", *lines]))
    return text_classification.TextInputter(text_classification.DataConfig(path=str(root)))


def streams(root: Path, rows: list[int]) -> Any:
    for i in rows:
        touch(root / f"{i:03}.txt", " ".join(f"{i}:{k}" for k in range(20 + i % 7)))
    return StreamInputter(
        TextGenerationConfig(data={"path": str(root), "train": "*.txt"})  # type: ignore[arg-type]
    )


SOURCES = {
    f.__name__: f
    for f in (folder, csv, records, arrays, coco, voc, yolo, scenes, photos, texts, streams)
}


def splits(made: Any, names: tuple[str, ...] = ("train", "val", "test")) -> dict[Any, str]:
    """The split of each row, by the row's name."""
    found: dict[Any, str] = {}
    for split in names:
        try:
            rows = made.row_names(split)
        except ConfigError:
            continue  # It has no such split.
        assert rows and not {*rows} & {*found}
        found |= dict.fromkeys(rows, split)
    return found


@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
@pytest.mark.parametrize("count", [60, 200])
def test_another_row_moves_no_other(make: Make, count: int, tmp_path: Path) -> None:
    before = splits(make(tmp_path / "a", list(range(count))))
    shares = {split: list(before.values()).count(split) / count for split in before.values()}
    if make is not streams:
        assert shares["train"] > 0.7 and shares["val"] > 0.01
    # The new row is first by name, in the middle or last; records can only be appended.
    after = splits(make(tmp_path / "a", [*range(count), 1000, 1001, -7, -8]))
    assert {row: after[row] for row in before} == before
    # A folder that was moved has the same splits.
    assert splits(make(tmp_path / "moved", list(range(count)))) == before


@pytest.mark.parametrize("share", [0.02, 0.1, 0.4])
def test_training_rows_are_never_held_out_later(share: float) -> None:
    """Classes that grow: rows go from held out to training at most."""
    for seed in range(5):
        names = [f"{seed}/{i}" for i in range(80)]
        trained: set[str] = set()
        for size in range(6, 80):
            labels = np.arange(size) % 3
            chosen = held_out(names[:size], share, "val", labels)
            assert all(0 < chosen[labels == k].sum() < np.sum(labels == k) for k in range(3))
            if share < 0.4 and size >= 24:  # So that no class is held out as a whole.
                assert not trained & {names[i] for i in np.flatnonzero(chosen)}
                trained |= {names[i] for i in np.flatnonzero(~chosen)}


def test_shares_and_independent_splits() -> None:
    names = [str(i) for i in range(20_000)]
    val, test = (held_out(names, 0.1, split) for split in ("val", "test"))
    assert abs(val.mean() - 0.1) < 0.01 and abs(test.mean() - 0.1) < 0.01
    assert abs((val & test).mean() - 0.01) < 0.003


def test_few_rows() -> None:
    assert held_out(["a", "b"], 0.1, "val").sum() == 1
    assert held_out(["a", "b", "c"], 0.1, "val", [0, 1, 2]).sum() == 1
    assert held_out(["a"] * 100, 0.1, "val").sum() == 10
    with pytest.raises(ConfigError, match="must have at least 2 rows to be divided"):
        held_out(["a"], 0.1, "val")


def test_equal_rows_stay_together() -> None:
    names = [f"text {i % 50}" for i in range(500)]
    chosen = held_out(names, 0.2, "val")
    assert not {n for n, c in zip(names, chosen, strict=True) if c} & {
        n for n, c in zip(names, chosen, strict=True) if not c
    }


def test_a_subset_has_classes_in_proportion() -> None:
    labels = np.repeat([0, 1, 2], [600, 300, 100])
    rows = subset([str(i) for i in range(1000)], 100, labels)
    assert np.bincount(labels[rows]).tolist() == [60, 30, 10]
