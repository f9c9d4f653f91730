"""`import_data`: each layout of data gets its own recipe, and an inventory of its files."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.box_files import write_scenes
from typer.testing import CliRunner

from towerpack import ConfigError
from towerpack.apps import find_recipe, import_data, write_picture
from towerpack.cli import app

SPLITS = {"train": ("train", 8), "val": ("valid", 3), "test": ("test", 2)}


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("scenes")
    counts = {split: count for split, (_, count) in SPLITS.items()}
    write_scenes(root, counts, ("coco", "voc", "yolo"))
    return root


def coco(scenes: Path, root: Path) -> None:
    """MS COCO's own layout, with captions beside the instances."""
    (root / "annotations").mkdir()
    for split in SPLITS:
        shutil.copytree(scenes / split, root / f"{split}2017")
        text = (scenes / f"{split}.json").read_text().replace(f"{split}/", "")
        (root / f"annotations/instances_{split}2017.json").write_text(text)
        captions = {**json.loads(text), "categories": []}
        (root / f"annotations/captions_{split}2017.json").write_text(json.dumps(captions))


def coco_of_roboflow(scenes: Path, root: Path) -> None:
    for split, (name, _) in SPLITS.items():
        shutil.copytree(scenes / split, root / name)
        text = (scenes / f"{split}.json").read_text().replace(f"{split}/", "")
        (root / name / "_annotations.coco.json").write_text(text)


def coco_of_cvat(scenes: Path, root: Path) -> None:
    (root / "annotations").mkdir()
    shutil.copytree(scenes / "train", root / "images")
    text = (scenes / "train.json").read_text().replace("train/", "")
    (root / "annotations/instances_default.json").write_text(text)


def voc(scenes: Path, root: Path) -> None:
    shutil.copytree(scenes / "voc", root, dirs_exist_ok=True)


def voc_of_roboflow(scenes: Path, root: Path) -> None:
    for split, (name, _) in SPLITS.items():
        shutil.copytree(scenes / split, root / name)
        for number, picture in enumerate(sorted((root / name).iterdir())):
            ending = ".XML" if number % 2 else ".xml"
            file = scenes / "voc/Annotations" / f"{picture.stem}.xml"
            shutil.copy(file, picture.with_suffix(ending))


def yolo(scenes: Path, root: Path) -> None:
    shutil.copytree(scenes / "yolo", root, dirs_exist_ok=True)


def yolo_of_roboflow(scenes: Path, root: Path) -> None:
    for split, (name, _) in SPLITS.items():
        shutil.copytree(scenes / "yolo/images" / split, root / name.title() / "Images")
        shutil.copytree(scenes / "yolo/labels" / split, root / name.title() / "Labels")
    (root / "data.yaml").write_text("train: ../train/images\nnc: 3\nnames: [zero, one, four]\n")


def yolo_of_cvat(scenes: Path, root: Path) -> None:
    for kind in ("images", "labels"):
        folder = root / "obj_train_data"
        shutil.copytree(scenes / "yolo" / kind / "train", folder, dirs_exist_ok=True)
    (root / "obj.names").write_text("zero\none\nfour\n")
    (root / "train.txt").write_text("data/obj_train_data/train000.png\n")


def write_pairs(root: Path, images: str, masks: str, values: Any, count: int = 12) -> None:
    rng = np.random.default_rng(count)
    for i in range(count):
        label = np.array(values, np.uint8)[np.arange(64).reshape(8, 8) % len(values)]
        write_picture(root / images / f"{i}.png", rng.integers(0, 256, (8, 8, 3), np.uint8))
        write_picture(root / masks / f"{i}_mask.png", label)


def masks_beside(scenes: Path, root: Path) -> None:
    write_pairs(root, "images", "masks", [0, 1, 255])


def masks_of_two_levels(scenes: Path, root: Path) -> None:
    write_pairs(root, "Images", "Labels", [0, 255])


def masks_of_splits(scenes: Path, root: Path) -> None:
    colors = [(0, 0, 0), (200, 0, 0), (0, 9, 0)]
    for name, count in SPLITS.values():
        write_pairs(root, f"{name}/imgs", f"{name}/masks", colors, count)


def masks_of_camvid(scenes: Path, root: Path) -> None:
    for split, (_, count) in SPLITS.items():
        write_pairs(root, split, f"{split}annot", [0, 1, 2], count)


def lines(count: int, form: str) -> str:
    return "".join(form.format(n=i, label="np"[i % 2]) + "\n" for i in range(count))


def table(scenes: Path, root: Path) -> None:
    (root / "reviews.csv").write_text("Review,Sentiment\n" + lines(20, "word {n},{label}"))


def tables(scenes: Path, root: Path) -> None:
    for name, count in SPLITS.values():
        (root / f"{name}.tsv").write_text(
            "id\ttext\tlabel\n" + lines(2 * count, "{n}\ta {n}\t{label}")
        )


def fast_text(scenes: Path, root: Path) -> None:
    (root / "train.txt").write_text(lines(20, "__label__{label} word {n}"))


def text_folders(scenes: Path, root: Path) -> None:
    for split, (name, count) in SPLITS.items():
        for label in ("neg", "pos"):
            for i in range(count):
                file = root / name.title() / label / f"more/{i}.TXT"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(f"word {i} {split} {label}")


LAYOUTS: dict[Callable[[Path, Path], None], tuple[str, str, int]] = {
    coco: ("detection", "coco", 13),
    coco_of_roboflow: ("detection", "coco", 13),
    coco_of_cvat: ("detection", "coco", 8),
    voc: ("detection", "voc", 13),
    voc_of_roboflow: ("detection", "voc", 13),
    yolo: ("detection", "yolo", 13),
    yolo_of_roboflow: ("detection", "yolo", 13),
    yolo_of_cvat: ("detection", "yolo", 8),
    masks_beside: ("segmentation", "csv", 12),
    masks_of_two_levels: ("segmentation", "csv", 12),
    masks_of_splits: ("segmentation", "csv", 13),
    masks_of_camvid: ("segmentation", "csv", 13),
    table: ("text_classification", "table", 20),
    tables: ("text_classification", "table", 26),
    fast_text: ("text_classification", "lines", 20),
    text_folders: ("text_classification", "folder", 26),
}


@pytest.mark.parametrize("write", LAYOUTS, ids=lambda write: write.__name__)
def test_each_layout_has_its_recipe(
    write: Callable[[Path, Path], None], scenes: Path, tmp_path: Path
) -> None:
    root = tmp_path / "data"
    root.mkdir()
    write(scenes, root)
    task, inputter, count = LAYOUTS[write]
    result = import_data(root, tmp_path / "out")
    assert (result.task, result.data["inputter"]) == (task, inputter)
    assert sum(result.counts.values()) == count and not result.bad and not result.left_out
    if count in (13, 26):
        assert {split: n * 13 // count for split, n in result.counts.items()} == {
            split: n for split, (_, n) in SPLITS.items()
        }
    recipe = find_recipe(result.recipe)
    assert recipe.config.task == task
    reader: Any = recipe.inputter()
    assert all(result.used["train"].values()), "a class without training data"
    assert len(next(iter(reader.flow("train")))[0]) == reader.batch_size


def test_the_inventory(tmp_path: Path) -> None:
    """No file and no class disappears without a word, and `--json` says the same."""
    root, rng = tmp_path / "data", np.random.default_rng(0)
    for split in ("Train", "Test"):
        for name, count in (("cat", 6), ("emu", 6), ("one", split == "Train"), ("none", 0)):
            (root / split / name).mkdir(parents=True)
            for i in range(count):
                file = root / split / name / f"{i}.png"
                write_picture(file, rng.integers(0, 256, (20, 20, 3), np.uint8))
                file.rename(file.with_suffix(".jfif")) if name == "emu" else None
    shutil.copy(root / "Train/cat/0.png", root / "Test/cat/again.png")
    (root / "Test/cat/page.jpg").write_text("<html>not found</html>")
    (root / "Train/cat/._0.png").write_bytes(b"\0")
    (root / "Train/cat/gone.png").symlink_to(root / "nowhere")
    (root / "Train/cat/notes.doc").write_text("BMs")
    (root / "__MACOSX").mkdir()
    result = import_data(root)
    train, val, test = (result.used[split] for split in ("train", "val", "test"))
    assert test == {"cat": 7, "emu": 6, "none": 0, "one": 0}
    both = {name: train[name] + val[name] for name in train}
    assert both == {"cat": 6, "emu": 6, "none": 0, "one": 1}
    assert [Path(one.file).name for one in result.bad] == ["page.jpg"]
    assert result.small_classes == {"none": 0, "one": 1}
    ((first, second),) = result.identical
    assert {Path(first).name, Path(second).name} == {"0.png", "again.png"}
    reasons = {Path(file).name: reason for file, reason in result.left_out}
    assert reasons["._0.png"] == reasons["__MACOSX"] == "hidden"
    assert reasons["gone.png"] == "a link without target"
    assert reasons["notes.doc"] == "not an image"
    printed = CliRunner().invoke(app, ["data", "import", str(root), "--overwrite", "--json"])
    assert json.loads(printed.stdout) == result.as_dict()
    shown = CliRunner().invoke(app, ["data", "import", str(root), "--overwrite"]).output
    for word in ("gone.png", "notes.doc", "page.jpg", "again.png", "none", "one", "emu"):
        assert word in shown


def test_advice_about_pictures(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name, gray, width in (("wide", True, 60), ("plain", False, 24)):
        root = tmp_path / name
        for i in range(24):
            picture = rng.integers(0, 256, (20, width - i % 2, 3), np.uint8)
            write_picture(
                root / "ab"[i % 2] / f"{i}.png", picture[:, :, [0, 0, 0]] if gray else picture
            )
    told = " ".join(import_data(tmp_path / "wide").advice)
    assert "All pictures are gray" in told
    [(height, width)] = re.findall(r"set data.size to \[(\d+), (\d+)\]", told)
    assert int(width) == 3 * int(height)
    told = " ".join(import_data(tmp_path / "plain").advice)
    assert "gray" not in told and "data.size" not in told


def test_advice_about_lopsided_splits(tmp_path: Path) -> None:
    for i in range(24):
        noise = np.random.default_rng(i).integers(0, 256, (20, 20, 3), np.uint8)
        write_picture(tmp_path / "abcdefgh"[i % 8] / f"{i}.png", noise)
    told = " ".join(import_data(tmp_path).advice)
    assert "of the 24 pictures are for training, instead of 80 %" in told and "train/" in told
    with_more = import_data(tmp_path, tmp_path / "out", split=0.4)
    assert "instead of" not in " ".join(with_more.advice)


def test_pictures_in_folders_of_other_names_are_classes(tmp_path: Path) -> None:
    """Folders `faces` and `masks` are classes if their files do not pair."""
    rng = np.random.default_rng(0)
    for name in ("faces", "masks"):
        for i in range(8):
            picture = rng.integers(0, 256, (20, 20, 3), np.uint8)
            write_picture(tmp_path / name / f"{name}{i}.png", picture)
    result = import_data(tmp_path)
    assert result.task == "classification" and set(result.used["train"]) == {"faces", "masks"}


def test_label_pictures_with_too_many_values(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)
    for name in ("images", "masks"):
        write_picture(tmp_path / name / "0.png", noise)
    with pytest.raises(ConfigError, match="different values"):
        import_data(tmp_path)
