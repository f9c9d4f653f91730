"""Boxes of three formats, bad ones, and what augmentation does with them."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from box_files import NAMES, write_scenes
from towerpack import ConfigError, DataFlowError, TowerpackError
from towerpack.apps.detection import DataConfig, DetectionInputter, make_inputter
from towerpack.apps.detection.augmenters import SsdTransforms
from towerpack.dataflow.images import clip_boxes


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("scenes")
    write_scenes(root, {"train": 20, "val": 5}, ("coco", "voc", "yolo"))
    return root


def inputter(**config: Any) -> DetectionInputter:
    found = make_inputter(DataConfig(batch_size=4, size=(64, 64), augmenter="none", **config))
    assert isinstance(found, DetectionInputter)
    assert found.parts  # which are looked for when they are needed
    return found


@pytest.mark.parametrize("other", ["voc", "yolo"])
def test_three_formats_say_the_same(scenes: Path, other: str) -> None:
    coco, found = inputter(path=str(scenes)), inputter(inputter=other, path=str(scenes / other))
    assert list(coco.class_names) == list(NAMES)
    same = [NAMES.index(name) for name in found.class_names]
    assert sorted(same) == [0, 1, 2]
    for one, two in zip(coco.parts["val"], found.parts["val"], strict=True):
        assert len(one.boxes) > 0
        assert Path(one.picture).name == Path(two.picture).name
        np.testing.assert_allclose(one.boxes, two.boxes, atol=1e-6)
        np.testing.assert_array_equal(one.class_ids, np.array(same)[two.class_ids])
    batch = next(iter(coco.flow("val")))
    first = coco.parts["val"][0]
    assert [a.shape[0] for a in batch] == [4] * 6
    np.testing.assert_allclose(batch[1][0, : len(first.boxes)], first.boxes, atol=1e-6)
    assert (batch[2][0] >= 0).sum() == len(first.boxes)  # the rest is padding


def changed(root: Path, to: Path, **values: Any) -> str:
    """A copy of the training annotations, the second one with other values."""
    content = json.loads((root / "train.json").read_text())
    content["annotations"][1] |= values
    (to / "train.json").write_text(json.dumps(content))
    return str(to)


@pytest.mark.parametrize("bbox", [[10, 10, 0, 5], [70, 10, 9, 9], [10, -20, 5, 15]])
def test_boxes_of_no_area(
    scenes: Path, tmp_path: Path, bbox: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """One error with file and annotation, or one warning with their number."""
    path = changed(scenes, tmp_path, bbox=bbox)
    with pytest.raises(TowerpackError, match=r"train.json, annotation 1: (.|\n)*bad_boxes=skip"):
        inputter(path=path, images=str(scenes))
    with caplog.at_level(logging.WARNING):
        whole, found = (
            inputter(path=str(scenes)),
            inputter(path=path, images=str(scenes), bad_boxes="skip", validation=0),
        )
    assert "Skipped 1 invalid annotations" in caplog.text
    counts = [sum(len(one.boxes) for one in i.parts["train"]) for i in (whole, found)]
    assert counts[0] - counts[1] == 1


def test_a_crowd_is_marked_and_boxes_are_clipped(scenes: Path, tmp_path: Path) -> None:
    path = changed(scenes, tmp_path, bbox=[-10, 50, 30, 30], iscrowd=1, area=128)
    found = inputter(path=path, images=str(scenes), validation=0)
    flow = found.flow("train")  # whole batches: a picture may be left out of one epoch
    every = [batch for epoch in range(9) for batch in flow.iterate(seed=0, epoch=epoch)]
    batches = [batch for batch in every if batch[3].any()]
    [boxes, _, crowd, areas, _] = batches[0][1:]
    np.testing.assert_allclose(boxes[crowd], [[0, 50 / 64, 20 / 64, 1]])
    assert areas[crowd] == pytest.approx(128)


@pytest.mark.parametrize("stated", [True, False])
def test_areas_are_in_pixels_of_pictures_that_are_not_square(tmp_path: Path, stated: bool) -> None:
    sizes = {"wide": (80, 20), "tall": (16, 96), "other": (50, 40)}
    boxes = {"wide": [10, 2, 40, 10], "tall": [3, 30, 10, 60], "other": [5, 5, 20, 30]}
    images, annotations = [], []
    for number, (name, (width, height)) in enumerate(sizes.items()):
        cv2.imwrite(str(tmp_path / f"{name}.png"), np.full((height, width, 3), number, np.uint8))
        size = {"width": width, "height": height} if stated else {}
        images.append({"id": number, "file_name": f"{name}.png", **size})
        for own in ({}, {"area": 123.0 + number}):
            row = {"image_id": number, "category_id": 1, "bbox": boxes[name], **own}
            annotations.append({"id": len(annotations), **row})
    content = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "a"}]}
    (tmp_path / "train.json").write_text(json.dumps(content))
    config = {"path": str(tmp_path), "images": str(tmp_path), "validation": 0}
    found = make_inputter(DataConfig(batch_size=1, size=(64, 64), augmenter="none", **config))
    seen: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    for picture, corners, _, _, areas, _ in found.flow("train").iterate(seed=0, epoch=0):
        seen[round(float(picture.max()))] = corners[0], areas[0]
    assert len(seen) == 3
    for number, (name, (width, height)) in enumerate(sizes.items()):
        x, y, w, h = boxes[name]
        corners, areas = seen[number]
        expected = [x / width, y / height, (x + w) / width, (y + h) / height]
        np.testing.assert_allclose(corners[:2], [expected] * 2, rtol=1e-5)
        np.testing.assert_allclose(areas[:2], [w * h, 123 + number], rtol=1e-5)


DAMAGE = {
    ("coco", "train.json", '"bbox"', '"box"'): r"train.json, annotation 0: bbox",
    ("voc", "voc/Annotations/train003.xml", "<xmin>", "<left>"): "train003.xml is damaged",
    ("voc", "voc/Annotations/train003.xml", "<xmax>", "<xmax>x"): r"train003.xml, line \d+: xmax",
    ("voc", "voc/Annotations/train003.xml", "<annot", "<!DOCTYPE a><annot"): "document type",
    (
        "yolo",
        "yolo/labels/train/train003.txt",
        " ",
        " x",
    ): "train003.txt, line 1: the line is not a box",
    (
        "yolo",
        "yolo/labels/train/train003.txt",
        " ",
        "9 ",
    ): "train003.txt, line 1: the class must be one of 0, 1, 2",
    ("yolo", "yolo/classes.txt", None, ""): "must contain data.yaml or classes.txt",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_told_by_file_and_line(tmp_path: Path, damage: Any) -> None:
    kind, file, old, new = damage
    write_scenes(tmp_path, {"train": 5}, (kind,))
    path = tmp_path / file
    if old is None:
        path.unlink()
    else:
        path.write_text(path.read_text().replace(old, new))
    with pytest.raises(TowerpackError, match=DAMAGE[damage]):
        inputter(inputter=kind, path=str(tmp_path / ("" if kind == "coco" else kind)))


def test_what_would_be_silently_wrong_is_refused(tmp_path: Path) -> None:
    write_scenes(tmp_path, {"train": 5}, ("coco", "yolo"))
    with pytest.raises(ConfigError, match="files name the classes"):
        inputter(path=str(tmp_path), class_names=["a", "b"])
    shutil.rmtree(tmp_path / "yolo" / "labels")
    with pytest.raises(ConfigError, match="0 boxes in"):
        inputter(inputter="yolo", path=str(tmp_path / "yolo"))
    file = tmp_path / "train.json"
    content = json.loads(file.read_text())
    for image in content["images"]:
        image.update(width=800, height=400)
    file.write_text(json.dumps(content))
    with pytest.raises(DataFlowError, match="a different size than the picture"):
        next(iter(inputter(path=str(tmp_path)).flow("val")))


def test_boxes_follow_the_picture() -> None:
    """A bright square stays in its box through colours, canvas, crop and mirror; one is kept."""
    change = SsdTransforms(zoom_out=3.0)
    box, kept, sizes = np.array([[20.0, 30, 60, 70]]), 0, set()
    for seed in range(60):
        picture = np.zeros((100, 120, 3), np.uint8)
        picture[30:70, 20:60] = 255
        transform = change(picture, box, np.random.default_rng(seed))
        image = transform.apply_image(picture)
        sizes.add(image.shape)
        moved, keep = clip_boxes(transform.apply_boxes(box), *image.shape[:2], min_area=0.5)
        kept += int(keep[0])
        x1, y1, x2, y2 = moved[0].astype(int)
        inside = image[y1 + 1 : y2 - 1, x1 + 1 : x2 - 1].astype(int)
        canvas = image.astype(int).sum(-1) == round(123.68) + round(116.78) + round(103.94)
        outside = np.where(canvas, 0, image.astype(int).max(-1))
        outside[max(y1 - 1, 0) : y2 + 1, max(x1 - 1, 0) : x2 + 1] = 0
        assert inside.min() > outside.max()
    assert kept == 60
    assert len(sizes) > 20
