"""Folders as users have them: readers of all tasks use the same files, and find splits alike."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from towerpack.apps import (
    classification,
    detection,
    import_data,
    style_transfer,
    write_picture,
)
from towerpack.apps import text_classification as texts
from towerpack.dataflow.images import encode_jpeg

XML = (
    "<annotation><object><name>a</name><bndbox><xmin>1</xmin><ymin>1</ymin>"
    "<xmax>5</xmax><ymax>5</ymax></bndbox></object></annotation>"
)


def write(file: Path, content: str | None = None) -> None:
    """Write a text, or a picture that differs from others."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if content is not None:
        file.write_text(content)
        return
    noise = np.random.default_rng([*str(file).encode()]).integers(0, 256, (9, 9, 3), np.uint8)
    file.write_bytes(encode_jpeg(noise))


def folder(root: Path) -> Any:
    data = classification.DataConfig(inputter="folder", path=str(root))
    return classification.make_inputter(data)


def text_folder(root: Path) -> Any:
    return texts.TextInputter(texts.DataConfig(inputter="folder", path=str(root)))


def style(root: Path) -> Any:
    data = style_transfer.DataConfig(path=str(root), validation=0)
    return style_transfer.make_inputter(data)


def boxes(root: Path, inputter: str, **values: Any) -> Any:
    data = detection.DataConfig(
        inputter=inputter, path=str(root), class_names=["a"], validation=0, **values
    )
    return detection.make_inputter(data)


READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "style": ("", style),
    "voc": ("JPEGImages", lambda root: boxes(root, "voc", train="Annotations")),
    "yolo": ("images/train", lambda root: boxes(root, "yolo")),
    "yolo, labels beside": ("obj_train_data", lambda root: boxes(root, "yolo", train=".")),
}


@pytest.mark.parametrize("reader", READERS)
def test_pictures_of_all_readers(reader: str, tmp_path: Path) -> None:
    """Pictures of any name and depth are used with their annotations; hidden files are not."""
    inside, make = READERS[reader]
    root = tmp_path / "images/mine"  # Folders above the data do not matter.
    for name in ("1.JPG", "2.jfif", "3", "deep/4.jpg"):
        write(root / inside / name)
        stem = Path(name).with_suffix("")
        if reader == "voc":
            write(root / "Annotations" / f"{stem}.XML", XML)
        elif reader != "style":
            place = "labels/train" if reader == "yolo" else inside
            write(root / place / f"{stem}.TXT", "0 0.5 0.5 0.2 0.2")
    for name in ("._1.jpg", "__MACOSX/1.jpg", "Thumbs.db", ".ipynb_checkpoints/1.jpg"):
        write(root / inside / name)
    made = make(root)
    assert sorted(Path(name).stem for name in made.row_names("train")) == ["1", "2", "3", "4"]
    if reader != "style":
        assert all(len(one.boxes) == 1 for one in made.parts["train"])


@pytest.mark.parametrize("names", [("train", "bus", "car"), ("test", "quiz"), ("Val", "Rhine")])
def test_classes_that_are_called_like_splits(names: tuple[str, ...], tmp_path: Path) -> None:
    for name in names:
        for i in range(4):
            write(tmp_path / "pictures" / name / f"{i}.jpg")
            write(tmp_path / "texts" / name / f"{i}.txt", f"a text of {name}")
    write(tmp_path / "pictures/README.md", "of vehicles")
    assert list(folder(tmp_path / "pictures").class_names) == sorted(names)
    assert list(text_folder(tmp_path / "texts").class_names) == sorted(names)
    assert len(style(tmp_path / "pictures").row_names("train")) == 4 * len(names)


def annotations_beside_images(root: Path) -> None:
    for i in range(4):
        write(root / f"images/{i}.jpg")
        write(root / f"annotations/{i}.xml", XML)


def labels_beside_pictures(root: Path) -> None:
    for split in ("train", "Validation"):
        for i in range(4):
            write(root / f"obj_{split}_data/{i}.jpg")
            write(root / f"obj_{split}_data/{i}.txt", "0 0.5 0.5 0.2 0.2")
    write(root / "obj.names", "a\n")


@pytest.mark.parametrize("make", [annotations_beside_images, labels_beside_pictures])
def test_layouts_of_boxes(make: Callable[[Path], None], tmp_path: Path) -> None:
    root = tmp_path / "images/mine"
    make(root)
    result = import_data(root)
    assert result.task == "detection"
    splits = ("train", "val") if make is labels_beside_pictures else ("train",)
    assert all(result.counts[split] for split in splits)
    assert sum(result.counts.values()) == 4 * len(splits)


def test_files_beside_label_pictures_are_listed(tmp_path: Path) -> None:
    for i in range(8):
        write(tmp_path / f"images/{i}.jpg")
        label = (np.arange(81).reshape(9, 9) % 2).astype(np.uint8)
        write_picture(tmp_path / f"masks/{i}.png", label)
    write(tmp_path / "classes.txt", "sky\nsea\n")
    write(tmp_path / "notes.md", "no picture")
    result = import_data(tmp_path)
    assert result.task == "segmentation"
    assert [Path(file).name for file, _ in result.left_out] == ["notes.md"]


def test_copies_stay_in_one_split(tmp_path: Path) -> None:
    for name in "ab":
        for i in range(30):
            write(tmp_path / name / f"{i}.jpg")
            for copy in range(2):
                shutil.copy(tmp_path / name / f"{i}.jpg", tmp_path / name / f"{copy} of {i}.jpg")
    result = import_data(tmp_path)
    assert not result.identical and sum(result.counts.values()) == 180
    assert all(result.counts[split] for split in ("train", "val", "test"))
