"""Augmenters of instance segmentation, which transform training images with boxes and masks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from towerpack.apps.classification.augmenters import to_lite_unit, to_unit
from towerpack.apps.detection.augmenters import BoxAugmenter, Boxes, SsdTransforms
from towerpack.dataflow.images import FlipTransform, Transform, TransformList

if TYPE_CHECKING:
    import tensorflow as tf

_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def to_standard(image: tf.Tensor) -> tf.Tensor:
    """Normalize pixels by the mean color and standard deviation of ImageNet.

    Args:
        image: uint8 [n, h, w, 3].
    """
    return (to_unit(image) - _MEAN) / _DEVIATION


def _flipped(picture: NDArray[np.uint8], boxes: Boxes, rng: np.random.Generator) -> Transform:
    del boxes
    flips = [FlipTransform(*picture.shape[:2])] if rng.random() < 0.5 else []
    return TransformList(flips)


flip = BoxAugmenter("flip", _flipped, to_standard)
"""Random flip; pixels are normalized by the mean and standard deviation of ImageNet."""

lite = BoxAugmenter("lite", _flipped, to_lite_unit)
"""Random flip; pixels are normalized as for EfficientNet-Lite: (pixels - 127) / 128."""

ssd_lite = BoxAugmenter("ssd_lite", SsdTransforms(1.5, 0.6), to_lite_unit)
"""Colors, canvases up to 1.5 times as large, crops of at least 0.6 of the sides, and flips."""
