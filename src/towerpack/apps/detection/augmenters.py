"""Augmenters of detection, which transform training images with their boxes.

All other images are stretched to the network's input size.
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
    """Augmentation of images with boxes, and normalization of pixels.

    Attributes:
        name: Name in messages and in the metadata of exports.
        draw: Function from an image, its boxes in pixels and a random generator to a random
            transform, which is applied before the image is stretched; None for no transform.
        normalize: First operation of the graph, from uint8 [n, h, w, 3] to float32.
    """

    name: str
    draw: Callable[[NDArray[np.uint8], Boxes, np.random.Generator], Transform] | None
    normalize: Callable[[tf.Tensor], tf.Tensor]

    def transform(
        self, picture: NDArray[np.uint8], boxes: Boxes, rng: np.random.Generator | None
    ) -> Transform | None:
        """Return the random transform of a training image; None without augmentation.

        Args:
            picture: uint8 [h, w, 3].
            boxes: [k, 4] in pixels.
            rng: Random generator; None outside of training.
        """
        return None if rng is None or self.draw is None else self.draw(picture, boxes, rng)


@dataclass(frozen=True)
class SsdTransforms:
    """Augmentation of SSD (Liu et al. 2016, 3.6): color, zoom out, random crop, flip.

    Attributes:
        zoom_out: Maximum size of the larger canvas on which every second image is placed, relative
            to the image; 1 for no canvas.
        least_scale: Minimum side of a crop, relative to the image.
        hue: Maximum change of the hue, in units of two degrees.
    """

    zoom_out: float = 4.0
    least_scale: float = 0.3
    hue: float = 9.0

    def __call__(
        self, picture: NDArray[np.uint8], boxes: Boxes, rng: np.random.Generator
    ) -> Transform:
        """Draw a transform for an image, uint8 [h, w, 3], and its boxes [k, 4] in pixels."""
        steps: list[Transform] = [self._color().get_transform(picture, rng)]
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

    def _color(self) -> RandomChooseAug:
        brightness, saturation = Brightness(32), Saturation(0.5)
        hue, contrast = Hue((-self.hue, self.hue)), Contrast((0.5, 1.5))
        orders = [[brightness, saturation, hue, contrast], [contrast, hue, brightness, saturation]]
        return RandomChooseAug([AugmentorList(order) for order in orders])

    def _crop(
        self, size: tuple[int, int], boxes: Boxes, rng: np.random.Generator
    ) -> CropTransform | None:
        """Return a random crop that overlaps a box enough; None for the whole image."""
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
        # A crop keeps a box if it contains more than half of the box.
        fits = ((both > 0.5 * whole) & (overlap >= _LEAST_OVERLAPS[least])).any(1)
        fits &= (w <= 2 * h) & (h <= 2 * w)
        if not fits.any():
            return None
        first = int(fits.argmax())
        return CropTransform(*(int(v[first]) for v in (y, x, h, w)))


def _flipped(picture: NDArray[np.uint8], boxes: Boxes, rng: np.random.Generator) -> Transform:
    del boxes
    return TransformList([FlipTransform(*picture.shape[:2])] if rng.random() < 0.5 else [])


none = BoxAugmenter("none", None, to_unit)
"""No augmentation; pixels from 0 to 1."""

ssd = BoxAugmenter("ssd", SsdTransforms(), minus_mean)
"""Augmentation of SSD with canvases up to 4 times as large; ImageNet's mean is subtracted."""

ssd_lite = BoxAugmenter("ssd_lite", SsdTransforms(1.5, 0.6), to_lite_unit)
"""Milder than `ssd`: canvases up to 1.5 times as large, crops of at least 0.6 of the sides."""

flip = BoxAugmenter("flip", _flipped, to_lite_unit)
"""Random flip, with the normalization of EfficientNet-Lite."""
