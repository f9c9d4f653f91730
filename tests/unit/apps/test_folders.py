"""Folders as users have them: all readers use the same files, and find splits alike."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from towerpack import ConfigError
from towerpack.apps import classification, detection, style_transfer, text_classification
from towerpack.apps._inputter import Inputter
from towerpack.apps._text_files import divided_texts
from towerpack.dataflow.images import encode_jpeg

JPEG = encode_jpeg(np.full((9, 9, 3), 90, np.uint8))
XML = (
    "<annotation><object><name>a</name><bndbox><xmin>1</xmin><ymin>1</ymin>"
    "<xmax>5</xmax><ymax>5</ymax></bndbox></object></annotation>"
)
Rows = Callable[..., dict[str, list[str]]]


def write(file: Path, content: str | bytes = JPEG) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


def rows(inputter: Any) -> dict[str, list[str]]:
    """Names of the rows of each split that is in the data."""
    if hasattr(inputter, "parts"):
        return {split: sorted(inputter.row_names(split)) for split in inputter.parts}
    return {"train": sorted(text for text, _, _ in inputter.find()["train"])}


def folder(root: Path, **values: Any) -> Any:
    data = classification.DataConfig(inputter="folder", path=str(root), **values)
    inputter: Any = classification.make_inputter(data)
    return inputter


def text_folder(root: Path, **values: Any) -> Any:
    data = text_classification.DataConfig(inputter="folder", path=str(root), **values)
    return text_classification.TextInputter(data)


def style(root: Path, **values: Any) -> Any:
    data = style_transfer.DataConfig(path=str(root), validation=0, **values)
    return style_transfer.make_inputter(data)


def box_files(root: Path, inputter: str, **values: Any) -> Any:
    data = detection.DataConfig(
        inputter=inputter, path=str(root), class_names=["a"], validation=0, **values
    )
    return detection.make_inputter(data)


# What each reader is given besides three pictures or texts, and where.
READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "style": ("", style),
    "voc": ("JPEGImages", lambda root: box_files(root, "voc", train="Annotations")),
    "yolo": ("images/train", lambda root: box_files(root, "yolo")),
}


@pytest.mark.parametrize("reader", READERS)
def test_pictures_of_all_readers(
    reader: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Pictures of any name are used; hidden files and broken links are counted."""
    inside, make = READERS[reader]
    pictures = tmp_path / "data" / inside
    names = ["1.JPG", "2.jfif", "3", "deep/4.jpg"]
    for name in names:
        write(pictures / name)
        stem = Path(name).with_suffix("")
        write(tmp_path / "data/labels/train" / f"{stem}.TXT", "0 0.5 0.5 0.2 0.2")
        if reader == "voc":
            write(tmp_path / "data/Annotations" / f"{stem}.XML", XML)
    write(pictures / "._1.jpg", b"\0\5")
    write(pictures / "__MACOSX/1.jpg", b"\0\5")
    write(tmp_path / "data/Annotations/._1.xml", b"\0\5")
    (pictures / "gone.jpg").symlink_to("no such file")
    (pictures / "loop").symlink_to(pictures)
    (tmp_path / "elsewhere").mkdir()
    if reader == "style":
        shutil.rmtree(tmp_path / "data/labels")
        shutil.rmtree(tmp_path / "data/Annotations")
    with caplog.at_level(logging.INFO):
        made = make(tmp_path / "data")
        used = sorted(Path(name).name for name in made.row_names("train"))
    assert used == sorted(Path(name).name for name in names)
    for reason in ("2 hidden", "1 a broken link", "1 a link to a folder"):
        assert reason in caplog.text
    if reader != "style":
        assert all(len(one.boxes) == 1 for one in made.parts["train"])


def test_inference_on_a_folder(tmp_path: Path) -> None:
    for name in ("1.JPG", "2.jfif", "a/3"):
        write(tmp_path / name)
    for name in ("._1.jpg", ".ipynb_checkpoints/1.jpg", "Thumbs.db", "notes.txt"):
        write(tmp_path / name, b"\0\5")
    made: Inputter = style(tmp_path)
    found = [Path(one).name for one in made.sources([str(tmp_path)])]
    assert found == ["1.JPG", "2.jfif", "3"]


def test_texts_in_folders(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Texts of any usual name are used, at any depth; no class disappears silently."""
    texts = {"a/1.TXT": "one", "a/deep/2.txt": "two", "b/3.md": "three", "c/4": "four"}
    for name, text in texts.items():
        write(tmp_path / "train" / name, text)
    others = (".ipynb_checkpoints/1.txt", "a/._1.txt", "d/5.html", "unsup/6.txt", "loose.txt")
    for name in others:
        write(tmp_path / "train" / name, "no text")
    with caplog.at_level(logging.INFO):
        found = list(text_folder(tmp_path).find()["train"])
    assert {text: label for text, label, _ in found} == {
        "one": "a", "two": "a", "three": "b", "four": "c"
    }  # fmt: skip
    assert "there are no texts of d" in caplog.text
    for reason in ("2 hidden", "not a text", "without labels", "not in the folder of a class"):
        assert reason in caplog.text


def test_patterns_of_texts(tmp_path: Path) -> None:
    for name in ("1.TXT", "b/2.txt", "._3.txt", ".git/4.txt"):
        write(tmp_path / name, f"text of {name}, which is long enough to be divided")
    for pattern, names in (("*.txt", ["1"]), ("**/*.txt", ["1", "2"]), ("[b]/*.txt", ["2"])):
        given = {"train": pattern, "val": None, "test": None}
        found = divided_texts(tmp_path, given, 0.2)
        assert [name for name, _ in found["train"]] == names


SPLITS = {
    "train": "train", "TRAIN": "train", "Train": "train", "Valid": "val", "VALIDATION": "val",
    "val": "val", "Test": "test",
}  # fmt: skip


@pytest.mark.parametrize("name", SPLITS)
@pytest.mark.parametrize("task", ["folder", "style", "yolo", "yolo2", "texts"])
def test_folders_of_splits_in_any_case(task: str, name: str, tmp_path: Path) -> None:
    for split in {"train", name} if SPLITS[name] != "train" else {name}:
        for c in "ab":
            place = {"yolo": f"images/{split}", "yolo2": f"{split}/Images"}.get(task, split)
            for i in range(2):
                write(tmp_path / place / c / f"{i}.jpg")
                write(tmp_path / place / c / f"{i}.txt", "0 0.5 0.5 0.2 0.2")
    if task == "texts":
        assert list(text_folder(tmp_path).find()) == list(dict.fromkeys(["train", SPLITS[name]]))
        return
    make = {"folder": folder, "style": style}.get(task, lambda root: box_files(root, "yolo"))
    made = make(tmp_path)
    parts = made.parts if task != "folder" else made.find()[1]
    assert list(parts) == list(dict.fromkeys(["train", SPLITS[name]]))
    assert task != "folder" or list(made.class_names) == ["a", "b"]


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


@pytest.mark.parametrize("make", [folder, text_folder, style])
def test_ambiguous_folders_are_refused(make: Any, tmp_path: Path) -> None:
    for name in ("train/cat", "train/dog", "test/cat", "more/cat"):
        write(tmp_path / name / "1.jpg")
        write(tmp_path / name / "1.txt", "text")
    with pytest.raises(ConfigError, match=r"train and more|more(.|\n)*fix(.|\n)*data.train"):
        rows(make(tmp_path))
    assert rows(make(tmp_path, train="train"))["train"]
