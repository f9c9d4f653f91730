"""Scenes of discs, rings and pairs of squares, as COCO (polygons and run lengths) and VOC files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from pycocotools import mask as coco

NAMES = ("disc", "pair", "ring")


def shape_mask(kind: int, size: tuple[int, int], x: int, y: int, side: int) -> np.ndarray:
    """A mask uint8 [h, w]: a disc, two squares with a gap, or a ring with a hole."""
    mask = np.zeros(size, np.uint8)
    center = x + side // 2, y + side // 2
    if kind == 1:
        third = side // 3
        cv2.rectangle(mask, (x, y), (x + third, y + side), 1, -1)
        cv2.rectangle(mask, (x + side - third, y), (x + side, y + side), 1, -1)
    else:
        cv2.circle(mask, center, side // 2, 1, -1)
        if kind == 2:
            cv2.circle(mask, center, side // 5, 0, -1)
    return mask


def scene(rng: np.random.Generator, size: tuple[int, int]) -> tuple[np.ndarray, list[Any]]:
    """A picture and its objects as (class, mask), in columns so that none covers another."""
    picture = rng.integers(0, 10, (*size, 3), np.uint8)
    objects = []
    for column in range(2):
        kind, side = int(rng.integers(3)), int(rng.integers(24, min(size[0], size[1] // 2) - 6))
        x = column * size[1] // 2 + int(rng.integers(size[1] // 2 - side - 2))
        y = int(rng.integers(size[0] - side - 2))
        mask = shape_mask(kind, size, x, y, side)
        color = [(250, 60, 60), (60, 250, 60), (60, 60, 250)][kind]
        picture[mask > 0] = color
        objects.append((kind, mask))
    return picture, objects


def run_lengths(mask: np.ndarray, *, compressed: bool = True) -> dict[str, Any]:
    """COCO's run lengths as JSON, compressed or as numbers."""
    if compressed:
        encoded = coco.encode(np.asfortranarray(mask))
        return {"size": list(mask.shape), "counts": encoded["counts"].decode()}
    flat = np.concatenate([[0], mask.T.ravel(), [2]])
    ends = np.flatnonzero(np.diff(flat))
    return {"size": list(mask.shape), "counts": np.diff(ends, prepend=0).tolist()}


def write_shapes(
    root: Path, counts: dict[str, int], size: tuple[int, int] = (96, 96)
) -> dict[str, list[tuple[int, np.ndarray]]]:
    """Write `split.json`, and the same as VOC below `root`. Return the objects by picture."""
    truth = {}
    folders = {n: root / n for n in ("JPEGImages", "Annotations", "SegmentationObject")}
    for folder in (*folders.values(), root / "ImageSets/Segmentation"):
        folder.mkdir(parents=True, exist_ok=True)
    for seed, (split, count) in enumerate(counts.items()):
        images, annotations = [], []
        for number in range(count):
            name = f"{split}{number:03}"
            picture, objects = scene(np.random.default_rng([seed, number]), size)
            truth[name] = objects
            cv2.imwrite(str(folders["JPEGImages"] / f"{name}.png"), picture[..., ::-1])
            labels, text = np.zeros(size, np.uint8), ""
            file = f"JPEGImages/{name}.png"
            image = {"id": number, "file_name": file, "height": size[0], "width": size[1]}
            images.append(image)
            for k, (kind, mask) in enumerate(objects):
                labels[mask > 0] = k + 1
                x, y, w, h = cv2.boundingRect(mask)
                row = {"id": len(annotations), "image_id": number, "category_id": kind + 1}
                runs = run_lengths(mask, compressed=bool(number % 2))
                row |= {"area": int(mask.sum()), "segmentation": runs}
                annotations.append(row | ({} if number % 3 else {"bbox": [x, y, w, h]}))
                box = {"xmin": x + 1, "ymin": y + 1, "xmax": x + w, "ymax": y + h}
                corners = "".join(f"<{key}>{value}</{key}>" for key, value in box.items())
                text += f"<object><name>{NAMES[kind]}</name><bndbox>{corners}</bndbox></object>"
            cv2.imwrite(str(folders["SegmentationObject"] / f"{name}.png"), labels)
            (folders["Annotations"] / f"{name}.xml").write_text(f"<annotation>{text}</annotation>")
        categories = [{"id": i, "name": name} for i, name in enumerate(NAMES, 1)]
        content = {"images": images, "annotations": annotations, "categories": categories}
        (root / f"{split}.json").write_text(json.dumps(content))
        names = "".join(f"{split}{number:03}\n" for number in range(count))
        (root / f"ImageSets/Segmentation/{split}.txt").write_text(names)
    return truth
