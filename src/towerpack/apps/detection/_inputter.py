"""Pictures and their boxes, as batches."""

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
from towerpack.dataflow.images import AugmentorList, clip_boxes
from towerpack.ops.geometry import Geometry, colours

_KEPT = 0.5  # share of a box that must be left for it to stay

INPUTTERS: Registry[Callable[[DataConfig], Found]] = Registry(
    "inputter", {name: f"towerpack.apps._box_files:read_{name}" for name in ("coco", "voc", "yolo")}
)
"""Functions from the section `data` of a recipe to names of classes and pictures of splits."""

AUGMENTERS: Registry[BoxAugmenter] = Registry(
    "augmenter",
    {name: f"towerpack.apps.detection.augmenters:{name}" for name in ("ssd", "ssd_lite", "none")},
)

Datapoint = tuple[NDArray[Any], ...]


def _decoded(one: Annotated) -> Datapoint:
    """Picture, boxes in pixels, class ids, crowd, areas, size."""
    picture = colours(3).augment(read_picture(one.picture))
    h, w = picture.shape[:2]
    boxes = one.on(h, w) * np.array([w, h, w, h], np.float32)
    crowd = np.zeros(len(boxes), bool) if one.crowd is None else one.crowd
    sides = boxes[:, 2:] - boxes[:, :2]
    areas = sides.prod(1) if one.areas is None else one.areas * (h * w)
    return picture, boxes, one.class_ids, crowd, areas, np.array([h, w], np.int32)


@dataclass(frozen=True)
class _Change:
    """What happens to a datapoint, with boxes in pixels, until it has the network's size."""

    geometry: Geometry
    augmenter: BoxAugmenter

    def __call__(self, dp: Datapoint, rng: np.random.Generator | None = None) -> Datapoint:
        picture, boxes, class_ids, crowd, areas, size = dp
        keep = np.ones(len(boxes), bool)
        if rng is not None and self.augmenter.draw is not None:
            transform = self.augmenter.draw(picture, boxes, rng)
            picture = transform.apply_image(picture)
            moved = transform.apply_boxes(boxes)
            boxes, keep = clip_boxes(moved, *picture.shape[:2], min_area=_KEPT)
        shares = boxes / np.tile(picture.shape[1::-1], 2)
        if keep.any():
            rows = shares[keep], class_ids[keep], crowd[keep], areas[keep]
        else:  # one row of padding: tensors of no rows have no best box
            rows = np.zeros([1, 4]), np.array([-1]), np.zeros(1), np.zeros(1)
        kinds = np.float32, np.int32, np.bool_, np.float32
        columns = (r.astype(k) for r, k in zip(rows, kinds, strict=True))
        return (self.geometry.scaling().augment(picture), *columns, size)


class DetectionInputter(FilesInputter):
    """Pictures and their boxes.

    Batches are (image uint8 [n, height, width, 3], boxes float32 [n, m, 4] as shares of the
    picture, class_ids int32 [n, m], crowd bool [n, m], areas float32 [n, m] in pixels of the
    original, size int32 [n, 2] of the original); m is that of the picture with most boxes, and rows
    to spare have the class -1.

    Args:
        config: Which data, and how.
        read: Finds the classes, and the pictures of each split.
        augmenter: What happens to training pictures.

    Attributes:
        config: As given.
        augmenter: As given; `normalize` is for the network's graph.
        geometry: From a decoded picture to the network's input, where nothing is random.
    """

    def __init__(
        self, config: DataConfig, read: Callable[[DataConfig], Found], augmenter: BoxAugmenter
    ) -> None:
        super().__init__(config)
        self.augmenter = augmenter
        self.geometry = Geometry(height=config.size[0], width=config.size[1])
        self._read = read

    def find(self) -> Found:
        """As annotations say.

        Raises:
            ConfigError: There are no classes, pictures or boxes.
            FormatError: Annotations are damaged.
        """
        names, parts = self._read(self.config)
        boxes = {split: sum(len(one.boxes) for one in part) for split, part in parts.items()}
        if not names or not all(boxes.values()):
            counts = (f"{s}: {n} boxes in {len(parts[s])} pictures" for s, n in boxes.items())
            raise ConfigError(
                "There is nothing to detect.", got=f"{len(names)} classes; {', '.join(counts)}"
            )
        if len({*names}) < len(names):
            raise ConfigError("A class is named twice.", got=", ".join(names))
        return names, parts

    def _checked(self, classes: Any, parts: dict[str, Any]) -> dict[str, Any]:
        parts = super()._checked(classes, parts)
        for one in itertools.chain(*parts.values()):
            one.on(*header_of(one.picture).upright_size)
        return parts

    def decoder(self) -> Callable[[Any], Any]:
        """Of annotated pictures."""
        return _decoded

    def flow(self, split: Split) -> DataFlow:
        training = split == "train"
        change = _Change(self.geometry, self.augmenter)
        pad = {1: 0, 2: -1, 3: 0, 4: 0}
        return self.batches(split, lambda ds: MapData(ds, change, rng=training), pad)

    def prepare(self, sample: Any) -> tuple[NDArray[np.uint8]]:
        """(uint8 [height, width, 3],)."""
        return (AugmentorList(self.geometry.augmentors()).augment(sample),)


def make_inputter(config: DataConfig | DetectionConfig) -> Inputter:
    """The inputter of a recipe, or of its section `data`.

    Raises:
        ConfigError: There is none of that name.
    """
    data = config if isinstance(config, DataConfig) else config.data
    return DetectionInputter(data, INPUTTERS.get(data.inputter), AUGMENTERS.get(data.augmenter))
