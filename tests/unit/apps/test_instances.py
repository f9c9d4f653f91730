"""Masks of two formats, bad ones, and what augmentation and batches do with them."""

from __future__ import annotations

import itertools
import json
import logging
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from mask_files import NAMES, write_shapes
from towerpack import TowerpackError
from towerpack.apps.instances import DataConfig, InstancesInputter, make_inputter
from towerpack.ops.box_masks import paste_mask


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    root = tmp_path_factory.mktemp("shapes")
    return root, write_shapes(root, {"train": 12, "val": 4})


def inputter(**config: Any) -> InstancesInputter:
    data = {"batch_size": 4, "short_edge": (96, 96), "augmenter": "none"}
    made = make_inputter(DataConfig(**{**data, **config}))
    assert isinstance(made, InstancesInputter)
    assert made.parts  # read when they are needed
    return made


@pytest.mark.parametrize("kind", ["coco", "voc"])
def test_masks_are_those_of_the_files(shapes: Any, kind: str) -> None:
    """Holes, parts that do not touch, both kinds of run lengths, and boxes that are not stated."""
    root, truth = shapes
    made = inputter(inputter=kind, path=str(root))
    names = list(made.class_names)
    assert sorted(names) == sorted(NAMES)
    [(image, boxes, ids, crowd, areas, masks, scaled, size)] = made.flow("val")
    assert image.shape == (4, 96, 96, 3)
    assert masks.shape[2:] == (112, 112)
    assert not crowd.any()
    for row, picture in enumerate(made.parts["val"]):
        expected = truth[Path(picture.picture).stem]
        assert [NAMES.index(names[i]) for i in ids[row] if i >= 0] == [k for k, _ in expected]
        for column, (_, mask) in enumerate(expected):
            pasted = paste_mask(masks[row, column], boxes[row, column], (96, 96))
            np.testing.assert_array_equal(pasted, mask > 0)
            box = cv2.boundingRect(mask)
            stated = mask.sum() if kind == "coco" else box[2] * box[3]
            assert areas[row, column] == pytest.approx(stated)
    assert (scaled == 96).all()
    assert (size == 96).all()


def changed(root: Path, to: Path, number: int = 1, **values: Any) -> str:
    content = json.loads((root / "train.json").read_text())
    content["annotations"][number] |= values
    (to / "train.json").write_text(json.dumps(content))
    return str(to)


def test_polygons_and_crowds(shapes: Any, tmp_path: Path) -> None:
    triangle, square = [10, 10, 40, 10, 10, 40], [60, 60, 80, 60, 80, 80, 60, 80]
    path = changed(shapes[0], tmp_path, 3, segmentation=[triangle, square], iscrowd=1)
    made = inputter(path=path, images=str(shapes[0]), validation=0, batch_size=1)
    flow = made.flow("train").iterate(seed=0, epoch=0)
    [(_, boxes, _, crowd, _, masks, *_)] = [batch for batch in flow if batch[3].any()]
    assert crowd.tolist() == [[False, True]]
    boxes, masks = boxes[0], masks[0]
    np.testing.assert_allclose(boxes[1], [10, 10, 80, 80])
    pasted = paste_mask(masks[1], boxes[1], (96, 96))
    expected = np.zeros((96, 96), np.uint8)
    for polygon in (triangle, square):
        cv2.fillPoly(expected, [np.reshape(polygon, (-1, 2))], 1)
    kernel = np.ones((3, 3), np.uint8)
    assert (cv2.erode(expected, kernel) <= pasted).all()
    assert (pasted <= cv2.dilate(expected, kernel)).all()
    assert not pasted[45:55, 45:55].any()


BAD = {
    "empty": ({"counts": [96 * 96], "size": [96, 96]}, r"annotation 1: .*the mask is empty"),
    "short": ({"counts": [50, 5], "size": [96, 96]}, r"annotation 1: .*do not cover 96 x 96"),
    "outside": ([[100, 5, 120, 5, 120, 30]], r"annotation 1: .*area inside its picture"),
    "size": ({"counts": [50, 5, 2445], "size": [50, 50]}, r"annotation 1: .*the size of the pic"),
    "missing": (None, r"annotation 1: segmentation"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_masks_are_refused_or_counted(
    shapes: Any, tmp_path: Path, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    value, message = BAD[case]
    path = changed(shapes[0], tmp_path, segmentation=value)
    config = {"path": path, "images": str(shapes[0]), "validation": 0}
    with pytest.raises(TowerpackError, match=rf"train.json, (?s:{message}.*bad_boxes=skip)"):
        inputter(**config)
    with caplog.at_level(logging.WARNING):
        counts = [len(p.boxes) for p in inputter(**config, bad_boxes="skip").parts["train"]]
    assert "Skipped 1 invalid annotations" in caplog.text
    assert counts == [1] + [2] * 11


def test_voc_masks_must_be_in_the_label_picture(tmp_path: Path) -> None:
    write_shapes(tmp_path, {"train": 4})
    file = tmp_path / "SegmentationObject/train002.png"
    labels = cv2.imread(str(file), cv2.IMREAD_UNCHANGED)
    config = {"inputter": "voc", "path": str(tmp_path), "validation": 0}
    cv2.imwrite(str(file), np.where(labels == 2, 0, labels))
    with pytest.raises(TowerpackError, match=r"train002.xml, line 1: .*no pixels .* label 2"):
        inputter(**config)
    cv2.imwrite(str(file), labels[:50])
    with pytest.raises(TowerpackError, match=r"(?s)train002.png must have the size.*50 x 96"):
        inputter(**config)
    assert not len(inputter(**config, bad_boxes="skip").parts["train"][2].boxes)


def test_pictures_without_objects_and_classes_without_pictures(
    shapes: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content = json.loads((shapes[0] / "train.json").read_text())
    rows = content["annotations"]
    rows[:] = [row for row in rows if row["image_id"] != 2 and row["category_id"] != 3]
    (tmp_path / "train.json").write_text(json.dumps(content))
    with caplog.at_level(logging.WARNING):
        made = inputter(path=str(tmp_path), images=str(shapes[0]), validation=0, batch_size=1)
    assert "'train' data have no objects of 1 of 3 classes: ring" in caplog.text
    batches = list(made.flow("train").iterate(seed=0, epoch=0))
    assert sum((ids >= 0).sum() for _, _, ids, *_ in batches) == len(rows)
    empty = [batch for batch in batches if (batch[2] < 0).all()]
    assert empty
    assert all(batch[5].shape == (1, 1, 112, 112) for batch in empty)


def test_masks_move_with_the_picture(shapes: Any) -> None:
    """After colors, canvas, crop, flip and scale, a mask is where its object's color is."""
    root, _ = shapes
    made = inputter(path=str(root), short_edge=(64, 128), augmenter="ssd_lite", batch_size=1)
    compared, sizes, kernel = 0, set(), np.ones((5, 5), np.uint8)
    for epoch in range(3):
        for image, boxes, ids, *_, masks, scaled, _ in made.flow("train").iterate(
            seed=0, epoch=epoch
        ):
            h, w = scaled[0]
            sizes.add((int(h), int(w)))
            assert image.shape[1] % 32 == image.shape[2] % 32 == 0
            assert not image[0, h:].any()
            bright = (np.ptp(image[0, :h, :w].astype(int), axis=-1) > 25).astype(np.uint8)
            every = np.zeros((h, w), np.uint8)
            for row in np.flatnonzero(ids[0] >= 0):
                every |= paste_mask(masks[0, row], boxes[0, row], (h, w)).astype(np.uint8)
            compared += int(every.sum())
            outside = cv2.dilate(every, kernel) < cv2.erode(bright, kernel)
            assert outside.mean() < 0.08  # objects of which less than half is left
            inside = cv2.erode(every, kernel) > cv2.dilate(bright, kernel)
            assert inside.sum() <= 0.02 * every.sum()
    assert compared > 10_000
    assert len(sizes) > 10


def test_batches_are_of_tall_or_of_wide_pictures(tmp_path: Path) -> None:
    """The same for each seed, wherever a run continues; a pass has all whole batches."""
    for name, size in (("tall", (128, 96)), ("wide", (96, 160))):
        write_shapes(tmp_path / name, {"train": 10}, size)
    files = {
        name: json.loads((tmp_path / name / "train.json").read_text()) for name in ("tall", "wide")
    }
    for name, content in files.items():
        shift = 100 * (name == "wide")
        for image in content["images"]:
            image |= {"id": image["id"] + shift, "file_name": f"{name}/{image['file_name']}"}
        for row in content["annotations"]:
            row |= {"id": row["id"] + shift, "image_id": row["image_id"] + shift}
    both = {k: files["tall"][k] + files["wide"][k] for k in ("images", "annotations")}
    both["categories"] = files["tall"]["categories"]
    (tmp_path / "train.json").write_text(json.dumps(both))
    config = {"path": str(tmp_path), "images": ".", "validation": 0, "augmenter": "flip"}
    flow = inputter(**config, short_edge=(64, 96), long_edge=130).flow("train")
    assert len(flow) == 4
    batches = list(flow.iterate(seed=3, epoch=1))
    shapes = [{bool(h > w) for h, w in batch[-1]} for batch in batches]
    assert sorted(map(len, shapes)) == [1] * 4
    assert {True} in shapes
    assert {False} in shapes
    assert max(batch[6].max() for batch in batches) <= 130
    iterator = flow.iterate(seed=3, epoch=1)
    list(itertools.islice(iterator, 2))
    for batch, expected in zip(flow.iterate(state=iterator.state()), batches[2:], strict=True):
        for one, other in zip(batch, expected, strict=True):
            np.testing.assert_array_equal(one, other)
    # With fewer tall pictures than a batch, all are mixed, so that none is left out.
    assert len(inputter(**config, batch_size=12).flow("train")) == 1
