"""Augmenters of detection: what happens to a training picture and its boxes.

Every other picture is stretched to the network's size, so that boxes stay the same shares of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from towerpack.apps.classification.augmenters import (
    IMAGENET_MEAN_RGB,
    minus_mean,
    to_lite_unit,
    to_unit,
)
from towerpack.dataflow.images import (
    AugmentorList,
    Brightness,
    ConstantBackgroundFiller,
    Contrast,
    CropTransform,
    FlipTransform,
    Hue,
    PasteTransform,
    RandomChooseAug,
    Saturation,
    Transform,
    TransformList,
)

if TYPE_CHECKING:
    import tensorflow as tf

Boxes = NDArray[Any]
_TRIES: Final = 50
_LEAST_OVERLAPS: Final = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)


@dataclass(frozen=True)
class BoxAugmenter:
    """What is done with pictures and boxes before a network sees them.

    Attributes:
        name: For messages and the metadata of exports.
        draw: From a picture, its boxes in pixels and a generator to what happens to both, before
            they are stretched to the network's size; None for nothing.
        normalize: The first operation of the graph: from uint8 [n, h, w, 3] to float32.
    """

    name: str
    draw: Callable[[NDArray[np.uint8], Boxes, np.random.Generator], Transform] | None
    normalize: Callable[[tf.Tensor], tf.Tensor]


@dataclass(frozen=True)
class SsdTransforms:
    """Colours, zooming out, a random part that keeps a box, mirroring (Liu et al. 2016, 3.6).

    Attributes:
        zoom_out: Greatest side of the canvas that half of the pictures are put on, in sides of the
            picture; 1 for none.
        least_scale: Least side of a part, in sides of the picture.
        hue: Greatest angle by which colours are turned, in units of two degrees.
    """

    zoom_out: float = 4.0
    least_scale: float = 0.3
    hue: float = 9.0

    def __call__(
        self, picture: NDArray[np.uint8], boxes: Boxes, rng: np.random.Generator
    ) -> Transform:
        """Draw what happens to a picture uint8 [h, w, 3] and its boxes [k, 4] in pixels."""
        steps: list[Transform] = [self._colours().get_transform(picture, rng)]
        size = picture.shape[0], picture.shape[1]
        if self.zoom_out > 1 and rng.random() < 0.5:
            factor = rng.uniform(1, self.zoom_out)
            new = round(size[0] * factor), round(size[1] * factor)
            y, x = (int(rng.integers(b - a + 1)) for a, b in zip(size, new, strict=True))
            filler = ConstantBackgroundFiller(np.round(IMAGENET_MEAN_RGB))
            steps.append(PasteTransform(y, x, *new, filler))
            size, boxes = new, steps[-1].apply_boxes(boxes)
        crop = self._crop(size, boxes, rng)
        if crop is not None:
            steps.append(crop)
            size = crop.h, crop.w
        if rng.random() < 0.5:
            steps.append(FlipTransform(*size))
        return TransformList(steps)

    def _colours(self) -> RandomChooseAug:
        brightness, saturation = Brightness(32), Saturation(0.5)
        hue, contrast = Hue((-self.hue, self.hue)), Contrast((0.5, 1.5))
        orders = [[brightness, saturation, hue, contrast], [contrast, hue, brightness, saturation]]
        return RandomChooseAug([AugmentorList(order) for order in orders])

    def _crop(
        self, size: tuple[int, int], boxes: Boxes, rng: np.random.Generator
    ) -> CropTransform | None:
        """A part of a picture that overlaps a box enough; None: all of it, or none was found."""
        least = rng.choice(len(_LEAST_OVERLAPS) + 1)
        if least == len(_LEAST_OVERLAPS) or not len(boxes):
            return None
        h, w = np.round(rng.uniform(self.least_scale, 1, (2, _TRIES)) * np.array(size)[:, None])
        y, x = np.floor(rng.random((2, _TRIES)) * (size[0] - h + 1, size[1] - w + 1))
        low = np.maximum(np.stack([x, y], -1)[:, None], boxes[:, :2])
        high = np.minimum(np.stack([x + w, y + h], -1)[:, None], boxes[:, 2:])
        both = np.maximum(high - low, 0).prod(-1)
        whole = (boxes[:, 2:] - boxes[:, :2]).prod(-1)
        overlap = both / ((h * w)[:, None] + whole - both)
        # A box that is mostly inside will be kept.
        fits = ((both > 0.5 * whole) & (overlap >= _LEAST_OVERLAPS[least])).any(1)
        fits &= (w <= 2 * h) & (h <= 2 * w)
        if not fits.any():
            return None
        first = int(fits.argmax())
        return CropTransform(*(int(v[first]) for v in (y, x, h, w)))


none = BoxAugmenter("none", None, to_unit)
"""Pictures are stretched to the size, and go from 0 to 1."""

ssd = BoxAugmenter("ssd", SsdTransforms(), minus_mean)
"""SSD's, with canvases up to four times as large; the mean colour of ImageNet is subtracted."""

ssd_lite = BoxAugmenter("ssd_lite", SsdTransforms(1.5, 0.6), to_lite_unit)
"""SSD's, milder: canvases up to 1.5 times as large, parts of 0.6 or more; (pixels - 127) / 128."""
