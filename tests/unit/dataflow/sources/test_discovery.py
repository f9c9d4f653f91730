"""Which files of a folder are used: one rule for every reader of folders."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from towerpack import ConfigError
from towerpack.apps._inputter import _files
from towerpack.apps._pictures import pictures_in
from towerpack.apps.style_transfer import DataConfig as StyleData
from towerpack.apps.style_transfer import make_inputter as style
from towerpack.apps.text_classification import DataConfig as TextData
from towerpack.apps.text_classification._files import read_folder
from towerpack.dataflow import ImageFolder
from towerpack.dataflow.sources.discovery import IMAGE_EXTENSIONS

ODD_NAMES = ("1.jfif", "2.JPG", "3.jpe", "4", "5.Png", "6.dat", "sub/7.jpeg", "sub/deep/8.TIFF")
FORMATS = {".jfif": "jpeg", ".jpe": "jpeg", "": "png", ".dat": "webp"}


def fill(folder: Path, names: tuple[str, ...] = ODD_NAMES) -> None:
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        image = Image.fromarray(np.full((6, 7, 3), 9, np.uint8))
        image.save(file, format=FORMATS.get(file.suffix))


def litter(folder: Path, picture: Path, ending: str) -> None:
    """Add what must not be used: hidden files, links without target, loops, other files."""
    for name in (
        f"._1{ending}",
        f".x{ending}",
        f".ipynb_checkpoints/1{ending}",
        f"__MACOSX/1{ending}",
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(picture.read_bytes())
    (folder / f"gone{ending}").symlink_to(folder / "nowhere")
    (folder / f"itself{ending}").symlink_to(folder / f"itself{ending}")
    (folder / "loop").symlink_to(folder)
    os.mkfifo(folder / f"pipe{ending}")
    (folder / "table.csv").write_text("BM, GIF and RIFF are no pictures")
    (folder / "bmp.cfg").write_text("BM" + "a text that begins like a bitmap" * 3)


def of_image_folder(root: Path) -> list[str]:
    return list(ImageFolder(root, decode=False).files)


def of_style(root: Path) -> list[str]:
    return style(StyleData(path=str(root), validation=0)).parts["train"]


READERS: list[Callable[[Path], list[str]]] = [
    of_image_folder,
    of_style,
    pictures_in,
    lambda root: list(_files([str(root)], IMAGE_EXTENSIONS)),
]


@pytest.mark.parametrize("read", READERS)
def test_pictures_by_content_in_every_reader(
    read: Callable[[Path], list[str]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "root"
    for name in ("cat", "emu"):
        fill(root / name)
        litter(root / name, root / name / "2.JPG", ".jpg")
    fill(tmp_path / "elsewhere", ("9.png",))
    (root / "emu/linked").symlink_to(tmp_path / "elsewhere")
    (root / "emu/again").symlink_to(tmp_path / "elsewhere")
    with caplog.at_level("INFO"):
        files = [Path(file).relative_to(root) for file in read(root)]
    assert Counter(file.parts[0] for file in files) == {"cat": 8, "emu": 9}
    assert {str(Path(*file.parts[1:])) for file in files} == {*ODD_NAMES, "again/9.png"}
    for reason in ("8 hidden", "4 a link without target", "2 a loop of links", "2 a pipe"):
        assert reason in caplog.text


def test_left_out_files_of_an_image_folder(tmp_path: Path) -> None:
    root = tmp_path / "root"
    fill(root / "cat")
    fill(root, ("loose.png",))
    (root / "self").symlink_to(root)
    litter(root / "cat", root / "cat/2.JPG", ".jpg")
    ds = ImageFolder(root)
    assert ds.classes == ["cat"] and len(ds.left_out_files) == ds.left_out == 12
    reasons = {Path(file).name: reason for file, reason in ds.left_out_files}
    assert reasons["loose.png"] == "not in a folder" and reasons["self"] == "a loop of links"
    with pytest.raises(ConfigError, match="no images"):
        ImageFolder(root, extensions=(".gif",))


def test_texts_by_name(tmp_path: Path) -> None:
    """Texts are found whatever their case and depth, with their classes."""
    for name in ("a/1.TXT", "b/x/2.Md", "c/3", "d/4.text", "unsup/5.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("words")
    litter(tmp_path / "a", tmp_path / "a/1.TXT", ".txt")
    (tmp_path / ".ipynb_checkpoints").mkdir()
    (tmp_path / ".ipynb_checkpoints/1.txt").write_text("words")
    examples = list(read_folder(tmp_path, TextData(inputter="folder")))
    assert [label for _, label, _ in examples] == ["a", "b", "c", "d"]


@pytest.mark.parametrize("names", [("Train", "TEST"), ("train", "Valid", "tESt")])
def test_splits_in_any_case(names: tuple[str, ...], tmp_path: Path) -> None:
    from towerpack.apps.classification import DataConfig, make_inputter

    for split in names:
        for label in "ab":
            fill(tmp_path / split / label, ("1.png", "2.png"))
    inputter = make_inputter(DataConfig(inputter="folder", path=str(tmp_path), validation=0))
    assert inputter.class_names == ["a", "b"] and set(inputter.parts) >= {"train", "test"}
    assert inputter.row_names("train")[0] == f"{names[0]}/a/1.png"


def test_a_class_may_have_the_name_of_a_split(tmp_path: Path) -> None:
    from towerpack.apps.classification import DataConfig, make_inputter

    for label in ("train", "bus", "car"):
        fill(tmp_path / label, ("1.png", "2.png", "3.png"))
    inputter = make_inputter(DataConfig(inputter="folder", path=str(tmp_path)))
    assert inputter.class_names == ["bus", "car", "train"]


def test_inference_reads_the_texts_of_a_folder(tmp_path: Path) -> None:
    from towerpack.apps.text import text_sources

    for name in ("a.TXT", "in/b.md", "c.csv", ".hidden.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"of {name}\nmore\n")
    assert text_sources([str(tmp_path)]) == ["of a.TXT", "more", "of in/b.md", "more"]
