"""`towerpack data import` recognizes annotations, label pictures and texts, in usual layouts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from towerpack import ConfigError
from towerpack.apps import find_recipe
from towerpack.cli import app

COUNT = 8
SPLITS = ("train", "valid")


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def pictures(folder: Path, names: str = "{}.jpg", count: int = COUNT) -> list[str]:
    """Write pictures that all differ."""
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(count):
        noise = np.random.default_rng([i, *str(folder).encode()]).integers(0, 256, (20, 20, 3))
        Image.fromarray(noise.astype(np.uint8)).save(folder / names.format(i))
    return [names.format(i) for i in range(count)]


def coco(names: list[str]) -> str:
    size = {"width": 20, "height": 20}
    return json.dumps({
        "images": [{"id": i, "file_name": name, **size} for i, name in enumerate(names)],
        "annotations": [
            {"id": i, "image_id": i, "category_id": 1 + i % 2, "bbox": [2, 2, 9, 9], "area": 81,
             "iscrowd": 0, "segmentation": []}
            for i in range(len(names))
        ],
        "categories": [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}],
    })  # fmt: skip


def voc(folder: Path, names: list[str]) -> None:
    for i, name in enumerate(names):
        box = "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>9</xmax><ymax>9</ymax></bndbox>"
        text = f"<object><name>{'ab'[i % 2]}</name>{box}</object>"
        write(folder / f"{Path(name).stem}.xml", f"<annotation>{text}</annotation>")


def yolo(folder: Path, names: list[str]) -> None:
    for i, name in enumerate(names):
        write(folder / f"{Path(name).stem}.txt", f"{i % 2} 0.5 0.5 0.2 0.2\n")


def coco_usual(root: Path) -> None:
    for split in SPLITS:
        names = pictures(root / "images", split + "{}.jpg")
        write(root / f"annotations/instances_{split}2017.json", coco(names))
    write(root / "annotations/captions_train2017.json", json.dumps({"images": [], "info": {}}))


def coco_roboflow(root: Path) -> None:
    for split in SPLITS:
        write(root / split / "_annotations.coco.json", coco(pictures(root / split)))
    write(root / "README.roboflow.txt", "made by a program")


def coco_cvat(root: Path) -> None:
    write(root / "annotations/instances_default.json", coco(pictures(root / "images/default")))


def voc_usual(root: Path) -> None:
    names = pictures(root / "JPEGImages")
    voc(root / "Annotations", names)
    write(root / "ImageSets/Main/train.txt", "\n".join(Path(name).stem for name in names))


def voc_cvat(root: Path) -> None:
    voc_usual(root)
    (root / "ImageSets/Main/train.txt").rename(root / "ImageSets/Main/default.txt")
    write(root / "labelmap.txt", "# label:color_rgb:parts:actions\na:1,2,3::\n")


def voc_roboflow(root: Path) -> None:
    for split in SPLITS:
        voc(root / split, pictures(root / split))


def voc_other(root: Path) -> None:
    voc(root / "annotations", pictures(root / "images"))


def yolo_ultralytics(root: Path) -> None:
    for split in ("train", "val"):
        yolo(root / "labels" / split, pictures(root / "images" / split))
    write(root / "data.yaml", "names: {0: a, 1: b}")


def yolo_roboflow(root: Path) -> None:
    for split in SPLITS:
        yolo(root / split / "labels", pictures(root / split / "images"))
    write(root / "data.yaml", "train: ../train/images\nnc: 2\nnames: [a, b]")


def yolo_cvat(root: Path) -> None:
    for split in ("train", "Validation"):
        folder = root / f"obj_{split}_data"
        yolo(folder, pictures(folder))
    write(root / "obj.names", "a\nb\n")
    write(root / "obj.data", "classes = 2\ntrain = data/train.txt\n")
    write(root / "train.txt", "data/obj_train_data/0.jpg\n")


def yolo_flat(root: Path) -> None:
    yolo(root / "labels", pictures(root / "images"))
    write(root / "classes.txt", "a\nb\n")


DETECTION = (coco_usual, coco_roboflow, coco_cvat, voc_usual, voc_cvat, voc_roboflow, voc_other,
             yolo_ultralytics, yolo_roboflow, yolo_cvat, yolo_flat)  # fmt: skip


def imported(root: Path, *arguments: Any) -> tuple[dict[str, Any], Any]:
    """The report, and the recipe."""
    result = CliRunner().invoke(app, ["data", "import", "--json", str(root), *arguments])
    if result.exception is not None:
        raise result.exception
    report = json.loads(result.stdout)
    return report, find_recipe(report["recipe"])


@pytest.mark.parametrize("make", DETECTION, ids=lambda make: make.__name__)
def test_boxes(make: Callable[[Path], None], tmp_path: Path) -> None:
    root = tmp_path / "images" / "of mine"  # A name that YOLO's layout gives a meaning.
    make(root)
    (root / "._1.jpg").write_bytes(b"\0\5")
    report, recipe = imported(root)
    assert recipe.config.task == "detection"
    inputter = recipe.inputter()
    assert list(inputter.class_names) == ["a", "b"]
    assert next(iter(inputter.flow("train")))[0].shape[0] == inputter.batch_size
    counts = report["pictures"]
    assert sum(counts.values()) == sum(1 for _ in root.rglob("[!.]*.jpg"))
    assert counts["train"] == COUNT or len({*counts}) == 2
    assert counts["val"] == COUNT or counts["train"] < COUNT
    boxes = [sum(many[name] for many in report["classes"].values()) for name in "ab"]
    assert sum(boxes) == sum(counts.values())
    assert [one["why"] for one in report["left_out"]] == ["hidden"] and not report["bad"]


def pairs(folder: Path, picture: str, label: str, values: list[Any], ending: str = "") -> None:
    names = pictures(folder / picture)
    (folder / label).mkdir(parents=True, exist_ok=True)
    for i, name in enumerate(names):
        mask = np.array(values, np.uint8)[
            np.random.default_rng(i).integers(0, len(values), (20, 20))
        ]
        Image.fromarray(mask).save(folder / label / f"{Path(name).stem}{ending}.png")


SCENES: dict[str, Callable[[Path], Any]] = {
    "indices": lambda root: pairs(root, "images", "masks", [0, 1, 2]),
    "named": lambda root: [
        pairs(root, "images", "masks", [0, 1, 2]),
        write(root / "classes.txt", "sky\nsea\nland\n"),
    ],
    "void": lambda root: pairs(root, "JPEGImages", "SegmentationClass", [0, 1, 255]),
    "two levels": lambda root: pairs(root, "Images", "Masks", [0, 255], "_mask"),
    "levels": lambda root: pairs(root, "img", "labels", [0, 100, 200]),
    "colors": lambda root: pairs(root, "images", "annotations", [[0, 0, 0], [9, 8, 7]]),
    "split": lambda root: [
        pairs(root, f"images/{split}", f"masks/{split}", [0, 1]) for split in SPLITS
    ],
    "split outside": lambda root: [pairs(root / s, "images", "masks", [0, 1]) for s in SPLITS],
}


@pytest.mark.parametrize("kind", SCENES)
def test_label_pictures(kind: str, tmp_path: Path) -> None:
    """Pairs are a segmentation, never a classification of "images" and "masks"."""
    SCENES[kind](tmp_path)
    (tmp_path / "notes.md").write_text("no picture")
    report, recipe = imported(tmp_path)
    assert recipe.config.task == "segmentation"
    inputter = recipe.inputter()
    assert sum(report["pictures"].values()) == COUNT * (1 + kind.startswith("split"))
    assert ("test" in report["pictures"]) != kind.startswith("split")
    _, labels = next(iter(inputter.flow("train")))
    count = 2 if kind in ("colors", "void", "two levels") or kind.startswith("split") else 3
    expected = [*range(count), *([255] if kind == "void" else [])]
    assert np.unique(labels).tolist() == expected and len(inputter.class_names) == count
    assert [Path(one["file"]).name for one in report["left_out"]] == ["notes.md"]
    assert inputter.class_names[0] == ("sky" if kind == "named" else "class 0")


def table(root: Path) -> None:
    lines = [f'"a text, number {i}",{"pos" if i % 2 else "neg"}' for i in range(COUNT)]
    write(root / "reviews.csv", "\n".join(["Review,Sentiment", *lines]))


def plain_table(root: Path) -> None:
    for split in ("train", "test"):
        lines = [f"{i % 2}\ta text of {split}, number {i}" for i in range(COUNT)]
        write(root / f"{split}.tsv", "\n".join(lines))


def labelled_lines(root: Path) -> None:
    write(root / "mails.txt", "\n".join(f"__label__{i % 2} text {i}" for i in range(COUNT)))


def text_folder(root: Path) -> None:
    for i in range(COUNT):
        write(root / "ab"[i % 2] / f"{i}.TXT", f"text {i}")


def split_text_folder(root: Path) -> None:
    for split in ("Train", "Test"):
        text_folder(root / split)
    write(root / "Train/a/page.html", "no text")


@pytest.mark.parametrize(
    "make", [table, plain_table, labelled_lines, text_folder, split_text_folder]
)
def test_texts(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    report, recipe = imported(tmp_path)
    assert recipe.config.task == "text_classification"
    inputter = recipe.inputter()
    tokens, _ = next(iter(inputter.flow("val")))
    assert len(inputter.class_names) == 2 and len(tokens)
    assert all(path.read_bytes() == content for path, content in before.items())
    files = 2 if make in (plain_table, split_text_folder) else 1
    assert sum(report["pictures"].values()) == COUNT * files
    assert sum(report["classes"]["train"].values()) == COUNT
    left_out = ["page.html"] if make is split_text_folder else []
    assert [Path(one["file"]).name for one in report["left_out"]] == left_out


def test_label_pictures_of_too_many_values(tmp_path: Path) -> None:
    pairs(tmp_path, "images", "masks", [[i, i, 7] for i in range(256)])
    with pytest.raises(ConfigError, match=r"different values(.|\n)*as PNG"):
        imported(tmp_path)


def test_pictures_of_unusual_names_are_no_texts(tmp_path: Path) -> None:
    for name in "ab":
        pictures(tmp_path / name)
        for file in list((tmp_path / name).iterdir()):
            file.rename(file.with_suffix(".jfif"))
    write(tmp_path / "notes.csv", "".join(f"a long text {i},{i % 2}\n" for i in range(COUNT)))
    report, recipe = imported(tmp_path)
    assert recipe.config.task == "classification"
    assert sum(report["pictures"].values()) == 2 * COUNT
