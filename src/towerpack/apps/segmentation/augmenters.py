"""Augmenters of segmentation, which transform an image and its labels together.

Labels are interpolated by nearest neighbor. Pixels outside of the image are void.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from towerpack.apps.classification.augmenters import Augmenter, minus_mean, to_lite_unit
from towerpack.apps.classification.augmenters import none as none
from towerpack.apps.segmentation._classes import VOID
from towerpack.dataflow.images import (
    ConstantBackgroundFiller,
    CropTransform,
    Flip,
    ImageAugmentor,
    PasteTransform,
    Transform,
    TransformList,
)
from towerpack.ops.geometry import Size, scaled

_SCALES: Final = (0.75, 1.5)


@dataclass(eq=False, repr=False)
class RandomScaleCrop(ImageAugmentor):
    """Augmentor that scales an image to a random multiple of a size, then crops this size.

    An image that is too small is placed at random on a black background with void labels.

    Args:
        size: Height and width of the result.
        scales: Minimum and maximum factor, drawn uniformly on a logarithmic scale.
    """

    size: Size
    scales: tuple[float, float] = _SCALES

    def get_transform(
        self, img: NDArray[np.uint8], rng: np.random.Generator | None = None
    ) -> Transform:
        rng = self.generator(rng)
        factor = np.exp(rng.uniform(*np.log(self.scales)))
        (h, w), size = self.size, (img.shape[0], img.shape[1])
        new = max(1, round(factor * h)), max(1, round(factor * w))
        steps = scaled(size, new)
        y, x = (int(rng.integers(abs(a - b) + 1)) for a, b in zip(new, self.size, strict=True))
        if new[0] >= h and new[1] >= w:
            return TransformList([*steps, CropTransform(y, x, h, w)])
        return TransformList(
            [*steps, PasteTransform(y, x, h, w, ConstantBackgroundFiller(0), VOID)]
        )


def _train(size: Size) -> list[ImageAugmentor]:
    return [RandomScaleCrop(size), Flip(horiz=True)]


fcn = unet = Augmenter("unet", _train, none.geometry, minus_mean)
"""Random scale from 0.75 to 1.5, random crop, random flip; ImageNet's mean is subtracted.

Outside of training, images are stretched to the size, so that nothing is cropped.
"""

efficientnet_lite = Augmenter("efficientnet_lite", _train, none.geometry, to_lite_unit)
"""Same as `fcn`, with the normalization of EfficientNet-Lite: (pixels - 127) / 128."""
