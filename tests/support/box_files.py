"""Scenes of scikit-learn's digits on scikit-image's photographs, written in three formats."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
from skimage import data

from towerpack.dataflow.datasets import Digits

NAMES = ("zero", "one", "four")
_DIGITS = (0, 1, 4)
_SIDE = 64
Box = tuple[int, int, int, int, int]
"""Class, x, y, width, height."""


def write_scenes(root: Path, counts: dict[str, int], formats: tuple[str, ...] = ("coco",)) -> None:
    """Write pictures of 64 x 64 pixels with one to three digits, and their boxes below `root`.

    Args:
        root: Directory.
        counts: Scenes of each split.
        formats: Of 'coco' (`train.json`), 'voc' (`voc/`), 'yolo' (`yolo/`).
    """
    digits = Digits("train")
    photos = [data.astronaut(), data.chelsea(), data.coffee(), np.dstack([data.camera()] * 3)]
    for number, (split, count) in enumerate(counts.items()):
        scenes = []
        for i in range(count):
            rng = np.random.default_rng([number, i])
            picture, boxes = _scene(digits, photos[rng.integers(4)], rng)
            scenes.append((f"{split}{i:03}", picture, boxes))
        for name in formats:
            {"coco": _coco, "voc": _voc, "yolo": _yolo}[name](root, split, scenes)


def _scene(digits: Digits, photo: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, list]:
    y, x = rng.integers(0, [photo.shape[0] - 200, photo.shape[1] - 200])
    picture = cv2.resize(photo[y : y + 200, x : x + 200] // 2, (_SIDE, _SIDE))
    boxes: list[Box] = []
    for _ in range(rng.integers(1, 4)):
        label = int(rng.integers(3))
        which = rng.choice(np.flatnonzero(digits.labels == _DIGITS[label]))
        side = int(rng.integers(18, 29))
        grey = np.clip(digits.images[which] * 16.0, 0, 255).astype(np.uint8)
        grey = cv2.resize(grey, (side, side))
        dx, dy, w, h = cv2.boundingRect((grey > 100).astype(np.uint8))
        y, x = rng.integers(_SIDE - side + 1, size=2)
        if any(abs(x - b[1]) < 20 and abs(y - b[2]) < 20 for b in boxes):
            continue
        part = picture[y : y + side, x : x + side]
        part[:] = np.maximum(part, grey[..., None])
        boxes.append((label, int(x + dx), int(y + dy), w, h))
    return picture, boxes


def _picture(path: Path, picture: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), picture[..., ::-1])


def _coco(root: Path, split: str, scenes: list) -> None:
    images, annotations = [], []
    for number, (name, picture, boxes) in enumerate(scenes):
        _picture(root / split / f"{name}.png", picture)
        file = f"{split}/{name}.png"
        images.append({"id": number, "file_name": file, "width": _SIDE, "height": _SIDE})
        annotations += [
            {"id": len(annotations) + k, "image_id": number, "category_id": 3 + b[0], "bbox": b[1:]}
            for k, b in enumerate(boxes)
        ]
    categories = [{"id": 3 + i, "name": name} for i, name in enumerate(NAMES)]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (root / f"{split}.json").write_text(json.dumps(content))


def _voc(root: Path, split: str, scenes: list) -> None:
    for folder in ("Annotations", "ImageSets/Main"):
        (root / "voc" / folder).mkdir(parents=True, exist_ok=True)
    for name, picture, boxes in scenes:
        _picture(root / "voc/JPEGImages" / f"{name}.png", picture)
        objects = "\n".join(
            f"<object><name>{NAMES[k]}</name><difficult>0</difficult><bndbox><xmin>{x + 1}</xmin>"
            f"<ymin>{y + 1}</ymin><xmax>{x + w}</xmax><ymax>{y + h}</ymax></bndbox>"
            f"<part><name>loop</name><bndbox><xmin>1</xmin></bndbox></part></object>"
            for k, x, y, w, h in boxes
        )
        (root / "voc/Annotations" / f"{name}.xml").write_text(
            f"<annotation><filename>{name}.png</filename>\n<size><width>{_SIDE}</width>"
            f"<height>{_SIDE}</height></size>\n{objects}\n</annotation>"
        )
    names = "".join(f"{name}\n" for name, *_ in scenes)
    (root / "voc/ImageSets/Main" / f"{split}.txt").write_text(names)


def _yolo(root: Path, split: str, scenes: list) -> None:
    labels = root / "yolo/labels" / split
    labels.mkdir(parents=True, exist_ok=True)
    for name, picture, boxes in scenes:
        _picture(root / "yolo/images" / split / f"{name}.png", picture)
        lines = (
            f"{k} {(x + w / 2) / _SIDE} {(y + h / 2) / _SIDE} {w / _SIDE} {h / _SIDE}\n"
            for k, x, y, w, h in boxes
        )
        (labels / f"{name}.txt").write_text("".join(lines))
    (root / "yolo/classes.txt").write_text("".join(f"{name}\n" for name in NAMES))
