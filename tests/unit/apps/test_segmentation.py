"""Segmentation: labels as files hold them, one geometry for picture and labels, its loss."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from label_files import scene, write_scenes
from towerpack import ConfigError, FormatError
from towerpack.apps import write_picture
from towerpack.apps.segmentation import (
    DataConfig,
    SegmentationConfig,
    SegmentationDisplay,
    SegmentationModeler,
    SegmentationReport,
    make_inputter,
)
from towerpack.tower import TowerFunction

COLOURS = [(0, 0, 0), (200, 10, 20), (20, 10, 200)]


def inputter(folder: Path, **settings: Any) -> Any:
    given = {"path": str(folder), "void": [255], "size": (20, 24), "batch_size": 2, **settings}
    made = make_inputter(DataConfig(**given))
    assert made.parts  # which are looked for when they are needed
    return made


def first(source: Any, split: Any = "train") -> tuple[np.ndarray, np.ndarray]:
    return next(iter(source.flow(split).iterate(seed=0, epoch=0)))


def as_palette(label: np.ndarray, file: Path) -> None:
    picture = Image.fromarray(label, "P")
    picture.putpalette([value for colour in COLOURS for value in colour] + [9] * 759)
    picture.save(file)


def as_colours(label: np.ndarray, file: Path) -> None:
    write_picture(file, np.array([*COLOURS, (7, 7, 7)], np.uint8)[np.minimum(label, 3)])


def as_16_bits(label: np.ndarray, file: Path) -> None:
    wide = label.astype(np.uint16)
    wide[label == 255] = 40_000
    Image.fromarray(wide).save(file)


@pytest.mark.parametrize("write", [as_palette, as_colours, as_16_bits])
def test_labels_are_the_same_however_they_are_written(tmp_path: Path, write: Any) -> None:
    write_scenes(tmp_path, {"train": 2, "val": 2})
    wanted = first(inputter(tmp_path, size=(40, 48)), "val")[1]
    assert {*wanted.ravel().tolist()} == {0, 1, 2, 255}
    for i in (2, 3):
        file = tmp_path / f"{i}-label.png"
        write(np.asarray(Image.open(file)), file)
    lines = [f"{name},{r},{g},{b}" for name, (r, g, b) in zip("abc", COLOURS, strict=True)]
    (tmp_path / "classes.txt").write_text("\n".join([*lines, "void,7,7,7"]))
    void = [255, "void", 40_000]
    found = first(inputter(tmp_path, size=(40, 48), void=void), "val")[1]
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("augmenter", ["none", "unet"])
def test_labels_move_with_the_picture(tmp_path: Path, augmenter: str) -> None:
    """The shapes are dark on bright paper, wherever they are moved; outside it is void."""
    write_scenes(tmp_path, {"train": 6, "val": 2})
    source = inputter(tmp_path, augmenter=augmenter, size=(60, 72), batch_size=6)
    images, labels = first(source)
    dark = images.min(-1) < 100
    assert (dark == np.isin(labels, (1, 2)))[labels != 255].mean() > 0.97
    assert (images[labels == 255].max(-1) == 0).mean() > (0.5 if augmenter == "unet" else -1)
    again = first(source)
    np.testing.assert_array_equal(labels, again[1])
    # Validation data are prepared as files are that a user hands in.
    image, label = first(source, "val")
    np.testing.assert_array_equal(image[0], source.prepare(source.read(str(tmp_path / "6.png")))[0])
    assert label.shape == (2, 60, 72)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "cp1252"])
def test_lists_of_other_programs(tmp_path: Path, encoding: str) -> None:
    """Names of files and of classes in any encoding that is known."""
    write_scenes(tmp_path, {"train": 2, "val": 2})
    (tmp_path / "0.png").rename(tmp_path / "café.png")
    for list_ in ("train.csv", "val.csv"):
        rows = (tmp_path / list_).read_text().splitlines()[1:]
        text = (
            "\r\n".join(["Bild;Klassen", *rows]).replace(",", ";").replace("0.png", "café.png", 1)
        )
        (tmp_path / list_).write_bytes(text.encode(encoding))
    (tmp_path / "classes.txt").write_bytes("Straße\r\nHäuser\r\nBäume".encode(encoding))
    if encoding == "cp1252":
        with pytest.raises(
            FormatError, match=r"(?s)line 2: .*not encoded in UTF-8.*data\.encoding"
        ):
            inputter(tmp_path).flow("train")
    source = inputter(tmp_path, encoding="cp1252")  # A byte order mark decides by itself.
    assert list(source.class_names) == ["Straße", "Häuser", "Bäume"]
    assert len(source.parts["train"]) == 2 and first(source)[0].shape[0] == 2


def broken(folder: Path, case: str) -> dict[str, Any]:
    """Write scenes with a mistake; gives the settings that they are read with."""
    label = scene(0)[1]
    if case == "label":
        label[3, 4] = 7
    elif case == "size":
        label = label[1:]
    write_picture(folder / "0-label.png", label)
    if case == "colour":
        as_colours(np.where(label == 1, 255, label), folder / "0-label.png")
    elif case == "damaged":
        (folder / "0-label.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing")
    elif case == "absent":
        (folder / "0-label.png").unlink()
    elif case == "line":
        (folder / "train.csv").write_text("0.png\n1.png,1-label.png\n")
    return {
        "colour": {"colours": COLOURS},
        "names": {"class_names": ["a", "a", "b"]},
        "void": {"void": ["sky"]},
        "few": {"colours": COLOURS[:2]},
        "images": {"images": "x"},
        "batch": {"batch_size": 5},
    }.get(case, {})


MISTAKES = {
    "label": (FormatError, r"train.csv, line 2: .*-label.png must .*got 7 in row 3, column 4"),
    "size": (FormatError, r"train.csv, line 2: .*must have the size of the picture"),
    "colour": (FormatError, r"train.csv, line 2: .*0-label.png must have only colors"),
    "damaged": (FormatError, r"train.csv, line 2: .*0-label.png is damaged"),
    "absent": (FormatError, r"train.csv, line 2: the file .*0-label.png does not exist"),
    "line": (FormatError, r"train.csv, line 1: a line must have 2 fields"),
    "names": (ConfigError, "classes"),
    "void": (ConfigError, "class names, got 'sky'"),
    "few": (ConfigError, "Each of the 3 classes needs its own color, got 2"),
    "images": (ConfigError, "data.images needs data.inputter=coco"),
    "batch": (ConfigError, "at least one batch of"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_one_error_that_says_where(tmp_path: Path, case: str) -> None:
    write_scenes(tmp_path, {"train": 2, "val": 2})
    kind, message = MISTAKES[case]
    settings = broken(tmp_path, case)
    with pytest.raises(kind, match=f"(?s){message}"):
        list(inputter(tmp_path, **settings).flow("train").iterate(seed=0, epoch=0))


def test_coco_small_things_lie_over_large_ones_and_crowds_are_void(tmp_path: Path) -> None:
    square = [[2, 2, 12, 2, 12, 12, 2, 12]]
    small = [[4, 4, 8, 4, 8, 8, 4, 8]]
    crowd = {"size": [20, 24], "counts": [16 * 20, 4 * 20, 4 * 20]}  # columns 16 to 19
    marks = [(1, 9, small, 0), (2, 3, square, 0), (3, 3, crowd, 1)]
    annotations = [
        {"id": i, "image_id": 5, "category_id": c, "segmentation": s, "iscrowd": k}
        for i, c, s, k in marks
    ]
    images = [{"id": 5, "file_name": "five.png"}, {"id": 6, "file_name": "six.png"}]
    categories = [{"id": 9, "name": "cup"}, {"id": 3, "name": "table"}]
    for name in ("five", "six"):
        write_picture(tmp_path / "train" / f"{name}.png", np.zeros((20, 24, 3), np.uint8))
    file = tmp_path / "annotations" / "instances_train.json"
    file.parent.mkdir()
    whole = {"images": images, "annotations": annotations, "categories": categories}
    file.write_text(json.dumps(whole))
    source = inputter(tmp_path, inputter="coco", void=[], validation=0)
    assert list(source.class_names) == ["background", "table", "cup"]
    labels = {int((label == 0).sum()): label for label in first(source)[1]}
    assert set(labels) == {480, 480 - 100 - 80}
    label = labels[300]
    assert (label[4:8, 4:8] == 2).all() and (label == 2).sum() == 16
    assert (label[2:12, 2:12] != 0).all() and (label == 1).sum() == 84
    assert (label[:, 16:20] == 255).all() and (label == 255).sum() == 80
    annotations[0]["category_id"] = 4
    file.write_text(json.dumps(whole))
    with pytest.raises(FormatError, match=r"instances_train.json, annotation 1: .*category 4"):
        list(inputter(tmp_path, inputter="coco", void=[], validation=0).flow("train"))


def test_void_counts_for_nothing(tmp_path: Path) -> None:
    """Neither in the loss nor in the metrics, which agree with counting by hand."""
    write_scenes(tmp_path, {"train": 2, "val": 2})
    data = {"path": str(tmp_path), "void": [255, "square"], "size": (40, 48), "batch_size": 2}
    model = {"options": {"width": 2}, "class_weights": [1.0, 3.0, 5.0]}
    config = SegmentationConfig(data=data, model=model)  # type: ignore[arg-type]
    source = make_inputter(config)
    modeler = SegmentationModeler(config, source)  # type: ignore[arg-type]
    tower = TowerFunction(modeler.build_graph, modeler.inputs())
    images, labels = first(source, "val")
    assert set(np.unique(labels)) == {0, 1, 255}
    outputs = tower(images, labels, is_training=False).outputs
    p = outputs["probabilities"].numpy()
    assert p[..., 2].max() == 0  # a class that is void is never found
    there = labels != 255
    weights = np.array([1.0, 3.0])[labels[there]]
    taken = np.take_along_axis(p[there], labels[there][:, None].astype(int), 1)[:, 0]
    np.testing.assert_allclose(
        outputs["cost"], (-np.log(taken) * weights).sum() / weights.sum(), rtol=1e-5
    )
    report = SegmentationReport(source.classes)  # type: ignore[attr-defined]
    report.begin()
    report.update({k: outputs[k].numpy() for k in report.outputs()}, 2)
    found, predicted, true = report.finish(), p.argmax(-1)[there], labels[there]
    ious = [
        ((predicted == k) & (true == k)).sum() / ((predicted == k) | (true == k)).sum()
        for k in (0, 1)
    ]
    assert found["pixel_accuracy"] == pytest.approx((predicted == true).mean())
    assert found["mean_iou"] == pytest.approx(np.mean(ious))
    assert np.isnan(found["iou/square"])
    assert [row.split()[0] for row in report.lines()] == ["class", "paper", "disc", "square"]


def test_masks_of_many_classes_are_scaled(tmp_path: Path) -> None:
    """OpenCV scales at most 128 channels at once."""
    write_scenes(tmp_path, {"train": 4, "val": 2})
    config = {"path": str(tmp_path), "class_names": [f"c{i}" for i in range(150)], "void": [255]}
    recipe = SegmentationConfig(data=DataConfig(**config))
    wanted = np.random.default_rng(0).integers(0, 150, (6, 8))
    outputs = {"probabilities": np.eye(150, dtype=np.float32)[wanted]}
    found = SegmentationDisplay(recipe, make_inputter(recipe)).mask(outputs, (6, 8))
    np.testing.assert_array_equal(found, wanted)
