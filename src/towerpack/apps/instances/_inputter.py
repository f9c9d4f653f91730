from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from towerpack._core.logs import get_logger
from towerpack.apps._box_files import Annotated, Found, read_coco, read_voc
from towerpack.apps._inputter import Inputter, Split
from towerpack.apps._label_pictures import decode_mask
from towerpack.apps._pictures import header_of
from towerpack.apps.detection._inputter import AUGMENTERS, BoxInputter, decoded, moved
from towerpack.apps.detection.augmenters import BoxAugmenter
from towerpack.apps.instances._config import DataConfig, InstancesConfig
from towerpack.config import Registry
from towerpack.dataflow import DataFlow, MapData
from towerpack.dataflow.images import TransformList
from towerpack.dataflow.images.image import upright
from towerpack.ops.box_masks import crop_masks
from towerpack.ops.geometry import Size, colors, scaled

MASK_SIDE: Final = 112  # pixels of a mask inside its box
STRIDE: Final = 32  # Sides of padded images are multiples of the coarsest feature map's stride.
_TALL, _WIDE = 1, 2

INPUTTERS: Registry[Callable[[DataConfig], Found]] = Registry(
    "inputter", {"coco": partial(read_coco, masks=True), "voc": partial(read_voc, masks=True)}
)
"""Functions from the section `data` of a recipe to class names and the images of each split."""

Datapoint = tuple[NDArray[Any], ...]
_LOG = get_logger(__name__)


def fitted(size: Size, short: int, long: int) -> Size:
    """Return the size of an image whose shorter side is `short`, unless `long` limits the longer.

    Args:
        size: Height and width before scaling.
        short, long: Length of the shorter side, and maximum length of the longer side.
    """
    factor = min(short / min(size), long / max(size))
    return max(1, int(factor * size[0] + 0.5)), max(1, int(factor * size[1] + 0.5))


def padded(picture: NDArray[Any]) -> NDArray[Any]:
    """Zero-pad an image at the bottom and at the right to multiples of `STRIDE`."""
    h, w = (-side % STRIDE for side in picture.shape[:2])
    return np.pad(picture, [(0, h), (0, w), (0, 0)]) if h or w else picture


def _decoded(annotated: Annotated) -> Datapoint:
    """Return the datapoint of detection, followed by the masks bool [k, h, w]."""
    picture, boxes, *rest = decoded(annotated)
    orientation = header_of(annotated.picture).orientation if annotated.stored else 1
    size = picture.shape[1::-1] if orientation > 4 else picture.shape[:2]
    masks = np.zeros([len(boxes), *picture.shape[:2]], np.bool_)
    for number, shape in enumerate(annotated.masks or ()):
        masks[number] = upright(decode_mask(shape, size), orientation)
    return picture, boxes, *rest, masks


@dataclass(frozen=True)
class _Change:
    """Function that augments a datapoint, scales it, and resamples masks to their boxes."""

    short_edge: tuple[int, int]
    long_edge: int
    augmenter: BoxAugmenter

    def __call__(self, dp: Datapoint, rng: np.random.Generator | None = None) -> Datapoint:
        picture, boxes, class_ids, crowd, areas, size, masks = dp
        transform = self.augmenter.transform(picture, boxes, rng)
        picture, boxes, keep = moved(transform, picture, boxes)
        if transform is not None:
            masks = [transform.apply_mask(mask) for mask in masks]
            keep = keep & [mask.any() for mask in masks]
        rows = [column[keep] for column in (boxes, class_ids, crowd, areas)]
        rows.append(crop_masks(itertools.compress(masks, keep), rows[0], MASK_SIDE))
        if not keep.any():  # one padding row
            rows = [np.zeros([1, *row.shape[1:]]) for row in rows]
            rows[1] -= 1
        low, high = self.short_edge
        short = high if rng is None else int(rng.integers(low, high + 1))
        before = picture.shape[:2]
        after = fitted(before, short, self.long_edge)
        picture = padded(TransformList(scaled(before, after)).apply_image(picture))
        rows[0] = rows[0] * np.tile(np.array(after[::-1]) / before[::-1], 2)
        kinds = np.float32, np.int32, np.bool_, np.float32, np.uint8
        columns = (row.astype(kind) for row, kind in zip(rows, kinds, strict=True))
        return (picture, *columns, np.array(after, np.int32), size)


class InstancesInputter(BoxInputter):
    """Images, their boxes and masks as batches.

    A batch is (image, boxes, class_ids, crowd, areas, masks, scaled, size). Images are scaled, and
    zero-padded at the bottom and at the right. m is the largest number of objects in an image of
    the batch, and unused rows have class -1:

        image: uint8 [n, height, width, 3].
        boxes: float32 [n, m, 4] in pixels of the scaled image.
        class_ids, crowd: int32 [n, m] and bool [n, m].
        areas: float32 [n, m] in pixels of the original image.
        masks: uint8 [n, m, 112, 112], 0 or 255: the masks inside of their boxes.
        scaled, size: int32 [n, 2] of the scaled image and of the original image.

    Args:
        config: Section `data` of a recipe.
        read: Function that returns the classes and the images of each split.
        augmenter: Augmentation of training images. The network normalizes pixels.
    """

    config: DataConfig

    def find(self) -> Found:
        names, parts = super().find()
        for split, part in parts.items():
            present = {number for picture in part for number in picture.class_ids.tolist()}
            missing = [name for number, name in enumerate(names) if number not in present]
            if missing:
                text = "The '%s' data have no objects of %d of %d classes: %s."
                _LOG.warning(text, split, len(missing), len(names), ", ".join(missing)[:400])
        return names, parts

    def decoder(self) -> Callable[[Any], Any]:
        return _decoded

    def flow(self, split: Split) -> DataFlow:
        data, training = self.config, split == "train"
        change = _Change(data.short_edge, data.long_edge, self.augmenter)
        pad = {0: 0, 1: 0, 2: -1, 3: 0, 4: 0, 5: 0}
        return self.batches(split, lambda ds: MapData(ds, change, rng=training), pad, _shape_group)

    def prepare(self, sample: Any) -> tuple[NDArray[Any], ...]:
        """Scale and pad an image. Return the image and its size before padding."""
        picture = colors(3).augment(sample)
        before = picture.shape[:2]
        after = fitted(before, self.config.short_edge[1], self.config.long_edge)
        picture = TransformList(scaled(before, after)).apply_image(picture)
        return padded(picture), np.array(after, np.int32)


def _shape_group(item: Annotated | Datapoint) -> int:
    """Return the group of an image or of its datapoint: taller than wide, or not."""
    h, w = header_of(item.picture).upright_size if isinstance(item, Annotated) else item[-1]
    return _TALL if h > w else _WIDE


def make_inputter(config: DataConfig | InstancesConfig) -> Inputter:
    """Create the inputter of a recipe with its augmenter.

    Args:
        config: Recipe, or its section `data`.
    """
    data = config if isinstance(config, DataConfig) else config.data
    return InstancesInputter(data, INPUTTERS.get(data.inputter), AUGMENTERS.get(data.augmenter))
