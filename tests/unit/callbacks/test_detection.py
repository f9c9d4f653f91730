"""Average precision, against pycocotools on files in COCO's own format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from pycocotools.mask import encode

from towerpack import CallbackError, ConfigError
from towerpack.callbacks import DetectionAP
from towerpack.ops.box_masks import paste_mask

RNG = np.random.default_rng(0)
PICTURES, FOUND, TRUE = 14, 9, 6


def corners(count: int) -> np.ndarray:
    begin = RNG.uniform(0, 300, (PICTURES, count, 2))
    return np.concatenate([begin, begin + RNG.uniform(5, 150, begin.shape)], -1).astype(np.float32)


TRUTH, LABELS = corners(TRUE), RNG.integers(-1, 3, (PICTURES, TRUE))
# What is found is near to what is true, and often of its class.
PICKED = RNG.integers(0, TRUE, FOUND)
NEAR = TRUTH[:, PICKED] + RNG.normal(0, 3, (PICTURES, FOUND, 4))
GUESSED = np.where(RNG.random((PICTURES, FOUND)) < 0.8, LABELS[:, PICKED], 1)
ALL: dict[str, np.ndarray] = {
    "boxes": np.sort(NEAR.reshape(-1, 2, 2), 1).reshape(NEAR.shape).astype(np.float32),
    "scores": np.maximum(RNG.uniform(-0.2, 1, (PICTURES, FOUND)), 0).astype(np.float32),
    "classes": np.maximum(GUESSED, 0),
    "true_boxes": TRUTH,
    "true_classes": LABELS,
    "crowd": RNG.random((PICTURES, TRUE)) < 0.2,
    "areas": (np.prod(TRUTH[..., 2:] - TRUTH[..., :2], axis=-1) * 0.7).astype(np.float32),
}


def by_file(path: Path, **truth: str) -> np.ndarray:
    """COCO's numbers, through its files."""

    def rows(box: str, label: str, columns: dict[str, str], there: np.ndarray) -> list[Any]:
        return [
            {
                "id": number + 1,
                "image_id": int(i),
                "category_id": int(ALL[label][i, j]),
                "bbox": [x1, y1, x2 - x1, y2 - y1],
                "iscrowd": 0,
                **{column: float(ALL[name][i, j]) for column, name in columns.items()},
            }
            for number, (i, j) in enumerate(zip(*np.nonzero(there), strict=True))
            for x1, y1, x2, y2 in [ALL[box][i, j].tolist()]
        ]

    annotations = rows("true_boxes", "true_classes", truth, ALL["true_classes"] >= 0)
    for row in annotations:
        row["iscrowd"] = int(row["iscrowd"])
        row.setdefault("area", row["bbox"][2] * row["bbox"][3])
    tree = {
        "info": {},
        "images": [{"id": i} for i in range(PICTURES)],
        "categories": [{"id": i} for i in range(3)],
        "annotations": annotations,
    }
    path.write_text(json.dumps(tree))
    truth_there = COCO(str(path))
    found = rows("boxes", "classes", {"score": "scores"}, ALL["scores"] > 0)
    run = COCOeval(truth_there, truth_there.loadRes(found), "bbox")
    run.evaluate()
    run.accumulate()
    run.summarize()
    return run.stats


def over(inferencer: DetectionAP, data: dict[str, np.ndarray], size: int) -> dict[str, float]:
    inferencer.begin()
    pictures = len(data["boxes"])
    for i in range(0, pictures, size):
        batch = {name: data[name][i : i + size] for name in inferencer.outputs()}
        inferencer.update(batch, len(batch["boxes"]))
    results = dict(inferencer.finish())
    assert list(results) == list(inferencer.names())
    return results


@pytest.mark.parametrize("size", [1, 4, PICTURES])
def test_it_is_what_coco_s_files_give(
    tmp_path: Path, size: int, capsys: pytest.CaptureFixture[str]
) -> None:
    for truth in ({}, {"iscrowd": "crowd", "area": "areas"}):
        expected = by_file(tmp_path / "truth.json", **truth)
        assert 0.1 < expected[0] < expected[1] < 0.9
        capsys.readouterr()
        found = over(DetectionAP(3, crowd=truth.get("iscrowd"), areas=truth.get("area")), ALL, size)
        assert not capsys.readouterr().out
        np.testing.assert_allclose([*found.values()], expected, rtol=1e-12)


def test_by_hand() -> None:
    """Two pictures of one large thing each; a box of 0.62 of its own counts at 3 thresholds."""
    box = np.array([[[0, 0, 100, 100]]] * 2, float)
    data = {
        "boxes": box * [1, 1, 0.62, 1],
        "scores": np.ones((2, 1)),
        "classes": np.array([[0], [1]]),
        "true_boxes": box,
        "true_classes": np.array([[0], [1]]),
    }
    found = over(DetectionAP(["cat", "dog", "bird"]), data, 2)
    assert [found[name] for name in ("ap", "ar100", "ap_large")] == pytest.approx([0.3] * 3)
    assert (found["ap50"], found["ap75"], found["ap/cat"]) == pytest.approx((1, 0, 0.3))
    assert np.isnan([found["ap_small"], found["ap/bird"]]).all()
    nothing = {name: value[:, :0] for name, value in data.items()}
    assert np.isnan([*over(DetectionAP(2), nothing, 1).values()]).all()


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"boxes": ALL["boxes"][..., :3]}, r"'boxes'(?s:.)*float32 \[14, 9, 3\](?s:.)*14, 9, 4"),
        ({"scores": ALL["scores"][:, :4]}, r"'scores'(?s:.)*\[14, 4\]"),
        ({"scores": ALL["scores"] * np.nan}, "not finite"),
        ({"classes": ALL["classes"] * 1.0}, "expected +integers"),
        ({"true_classes": ALL["true_classes"] + 2}, r"must be from 0 to 2, got 0 to 4"),
        ({"true_boxes": ALL["true_boxes"][..., ::-1]}, "with x1 ≤ x2 and y1 ≤ y2, got"),
    ],
)
def test_what_does_not_fit_is_named(changed: dict[str, np.ndarray], complaint: str) -> None:
    with pytest.raises(CallbackError, match=complaint):
        DetectionAP(3).update({**ALL, **changed}, PICTURES)


def test_there_must_be_classes() -> None:
    with pytest.raises(ConfigError, match="needs at least one class"):
        DetectionAP([])


def test_masks_are_evaluated_as_by_pycocotools(tmp_path: Path) -> None:
    """Masks at random inside of the boxes, whose pixels are files of run lengths for COCO."""
    size = np.array([[300 + 7 * i, 400] for i in range(PICTURES)])
    rng = np.random.default_rng(1)
    masks = {"masks": rng.random((PICTURES, FOUND, 28, 28), np.float32) ** 0.5}
    masks["true_masks"] = (rng.random((PICTURES, TRUE, 40, 40)) < 0.8).astype(np.uint8) * 255
    data = {**ALL, **masks, "size": size}

    def rows(kind: str, box: str, label: str, there: np.ndarray) -> list[Any]:
        result = []
        for number, (i, j) in enumerate(zip(*np.nonzero(there), strict=True)):
            pasted = paste_mask(data[kind][i, j], data[box][i, j], tuple(size[i]))
            runs = encode(np.asfortranarray(pasted, np.uint8))
            row = {"id": number + 1, "image_id": int(i), "category_id": int(data[label][i, j])}
            row |= {"segmentation": {**runs, "counts": runs["counts"].decode()}}
            result.append(row | {"area": float(pasted.sum()), "iscrowd": 0})
        return result

    truth = rows("true_masks", "true_boxes", "true_classes", ALL["true_classes"] >= 0)
    found = rows("masks", "boxes", "classes", ALL["scores"] > 0)
    for row, score in zip(found, ALL["scores"][ALL["scores"] > 0], strict=True):
        row["score"] = float(score)
    images = [{"id": i, "height": int(h), "width": int(w)} for i, (h, w) in enumerate(size)]
    tree = {"info": {}, "images": images, "annotations": truth}
    tree["categories"] = [{"id": i} for i in range(3)]
    (tmp_path / "truth.json").write_text(json.dumps(tree))
    there = COCO(str(tmp_path / "truth.json"))
    run = COCOeval(there, there.loadRes(found), "segm")
    run.evaluate()
    run.accumulate()
    run.summarize()
    inferencer = DetectionAP(3, masks="masks", true_masks="true_masks", size="size")
    result = over(inferencer, data, 5)
    masks_only = [value for name, value in result.items() if name.startswith("mask_")]
    np.testing.assert_allclose(masks_only, np.where(run.stats < 0, np.nan, run.stats), atol=1e-9)
    boxes = over(DetectionAP(3), data, 4)
    assert {name: result[name] for name in boxes} == pytest.approx(boxes, nan_ok=True)
    assert 0 < result["mask_ap"] < result["ap"]
    with pytest.raises(ConfigError, match="got only masks"):
        DetectionAP(3, masks="masks")
