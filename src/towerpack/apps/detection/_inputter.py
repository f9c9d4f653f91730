from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError
from towerpack.apps._box_files import Annotated, Found
from towerpack.apps._inputter import Inputter, Split
from towerpack.apps._pictures import FilesInputter, header_of, read_picture
from towerpack.apps.detection._config import DataConfig, DetectionConfig
from towerpack.apps.detection.augmenters import BoxAugmenter
from towerpack.config import Registry
from towerpack.dataflow import DataFlow, MapData
from towerpack.dataflow.images import Transform, clip_boxes
from towerpack.ops.geometry import Geometry, colours

_LEAST_SHARE = 0.5  # boxes of which a crop contains a smaller fraction are dropped

INPUTTERS: Registry[Callable[[DataConfig], Found]] = Registry(
    "inputter", {name: f"towerpack.apps._box_files:read_{name}" for name in ("coco", "voc", "yolo")}
)
"""Functions from the section `data` of a recipe to class names and the images of each split."""

_AUGMENTERS = "ssd", "ssd_lite", "flip", "none"
AUGMENTERS: Registry[BoxAugmenter] = Registry(
    "augmenter",
    {name: f"towerpack.apps.detection.augmenters:{name}" for name in _AUGMENTERS},
)

Datapoint = tuple[NDArray[Any], ...]


def decoded(annotated: Annotated) -> Datapoint:
    """Return the image, boxes in pixels, class ids, crowd flags, areas and image size."""
    picture = colours(3).augment(read_picture(annotated.picture))
    h, w = picture.shape[:2]
    boxes = annotated.on(h, w) * np.array([w, h, w, h], np.float32)
    crowd = np.zeros(len(boxes), bool) if annotated.crowd is None else annotated.crowd
    sides = boxes[:, 2:] - boxes[:, :2]
    areas = sides.prod(1) if annotated.areas is None else annotated.areas * (h * w)
    return picture, boxes, annotated.class_ids, crowd, areas, np.array([h, w], np.int32)


def moved(
    transform: Transform | None, picture: NDArray[Any], boxes: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_]]:
    """Return the transformed image, its boxes, and which boxes are still inside the image."""
    if transform is None:
        return picture, boxes, np.ones(len(boxes), np.bool_)
    picture = transform.apply_image(picture)
    boxes = transform.apply_boxes(boxes)
    return picture, *clip_boxes(boxes, *picture.shape[:2], min_area=_LEAST_SHARE)


@dataclass(frozen=True)
class _Change:
    """Function that augments a datapoint and scales its image to the network's input size."""

    geometry: Geometry
    augmenter: BoxAugmenter

    def __call__(self, dp: Datapoint, rng: np.random.Generator | None = None) -> Datapoint:
        picture, boxes, class_ids, crowd, areas, size = dp
        transform = self.augmenter.transform(picture, boxes, rng)
        picture, boxes, keep = moved(transform, picture, boxes)
        shares = boxes / np.tile(picture.shape[1::-1], 2)
        if keep.any():
            rows = shares[keep], class_ids[keep], crowd[keep], areas[keep]
        else:  # one padding row, because empty tensors have no best box
            rows = np.zeros([1, 4]), np.array([-1]), np.zeros(1), np.zeros(1)
        kinds = np.float32, np.int32, np.bool_, np.float32
        columns = (r.astype(k) for r, k in zip(rows, kinds, strict=True))
        return (self.geometry.scaling().augment(picture), *columns, size)


class BoxInputter(FilesInputter):
    """Base class of inputters of images with boxes. Subclasses define `decoder` and `flow`.

    Args:
        config: Section `data` of a recipe.
        read: Function that returns the classes and the images of each split.
        augmenter: Augmentation of training images and normalization.
    """

    def __init__(self, config: Any, read: Callable[[Any], Found], augmenter: BoxAugmenter) -> None:
        super().__init__(config)
        self.augmenter = augmenter
        self._read = read

    def find(self) -> Found:
        names, parts = self._read(self.config)
        boxes = {s: sum(len(picture.boxes) for picture in part) for s, part in parts.items()}
        if not names or not all(boxes.values()):
            counts = (f"{s}: {n} boxes in {len(parts[s])} pictures" for s, n in boxes.items())
            got = f"{len(names)} classes; {', '.join(counts)}"
            raise ConfigError("Each split must have classes, pictures and boxes.", got=got)
        if len({*names}) < len(names):
            raise ConfigError("Class names must be unique.", got=", ".join(names))
        return names, parts

    def _checked(self, classes: Any, parts: dict[str, Any]) -> dict[str, Any]:
        parts = super()._checked(classes, parts)
        for annotated in itertools.chain(*parts.values()):
            annotated.on(*header_of(annotated.picture).upright_size)
        return parts


class DetectionInputter(BoxInputter):
    """Images and their boxes as batches.

    A batch is (image, boxes, class_ids, crowd, areas, size). m is the largest number of boxes in
    an image of the batch, and unused rows have class -1:

        image: uint8 [n, height, width, 3].
        boxes: float32 [n, m, 4] as fractions of the image size.
        class_ids, crowd: int32 [n, m] and bool [n, m].
        areas: float32 [n, m] in pixels of the original image.
        size: int32 [n, 2] of the original image.

    Args:
        config: Section `data` of a recipe.
        read: Function that returns the classes and the images of each split.
        augmenter: Augmentation of training images and normalization.
    """

    def __init__(
        self, config: DataConfig, read: Callable[[DataConfig], Found], augmenter: BoxAugmenter
    ) -> None:
        super().__init__(config, read, augmenter)
        self.geometry = Geometry(height=config.size[0], width=config.size[1])

    def decoder(self) -> Callable[[Any], Any]:
        return decoded

    def flow(self, split: Split) -> DataFlow:
        training = split == "train"
        change = _Change(self.geometry, self.augmenter)
        pad = {1: 0, 2: -1, 3: 0, 4: 0}
        return self.batches(split, lambda ds: MapData(ds, change, rng=training), pad)


def make_inputter(config: DataConfig | DetectionConfig) -> Inputter:
    """Create the inputter of a recipe with its augmenter.

    Args:
        config: Recipe, or its section `data`.
    """
    data = config if isinstance(config, DataConfig) else config.data
    return DetectionInputter(data, INPUTTERS.get(data.inputter), AUGMENTERS.get(data.augmenter))
