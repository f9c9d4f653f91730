"""Number ranges and types: what brings pixels into the form that a model wants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from towerpack.dataflow.images._augmentor import PhotometricAugmentor
from towerpack.dataflow.images._image import Image
from towerpack.dataflow.images._values import Floats, channel_means, to_uint8


@dataclass(eq=False, repr=False)
class MeanVarianceNormalize(PhotometricAugmentor):
    """Gives every image mean 0 and standard deviation 1, as float32.

    The deviation counts as at least 1 / sqrt(number of values), so that even images are not blown
    up.

    Args:
        all_channel: Over all channels together; otherwise each by itself.
    """

    all_channel: bool = True

    def change(self, img: Image, drawn: None) -> Image:
        values = img.astype(np.float32)
        values -= self._means(values)
        count = img.size if self.all_channel else img.shape[0] * img.shape[1]
        deviation = np.sqrt(self._means(values * values))
        return values / np.maximum(deviation, np.float32(count**-0.5))

    def _means(self, values: Floats) -> Any:
        return values.mean() if self.all_channel else channel_means(values)


@dataclass(eq=False, repr=False)
class MinMaxNormalize(PhotometricAugmentor):
    """Stretches every image to min..max, as float32; an image of one value becomes `min`.

    Args:
        min: What the least value becomes.
        max: What the greatest value becomes.
        all_channel: Over all channels together; otherwise each by itself.
    """

    min: float = 0.0
    max: float = 255.0
    all_channel: bool = True

    def change(self, img: Image, drawn: None) -> Image:
        values = img.astype(np.float32)
        values -= values.min() if self.all_channel else values.min(axis=0).min(axis=0)
        greatest = values.max() if self.all_channel else values.max(axis=0).max(axis=0)
        values *= (self.max - self.min) / np.where(greatest > 0, greatest, np.float32(1))
        return values + np.float32(self.min)


@dataclass(eq=False, repr=False)
class ToUint8(PhotometricAugmentor):
    """Converts to uint8, rounded, and clipped to 0..255.

    Args:
        max_value: White in float images: 255 or 1.
    """

    max_value: float = 255.0

    def change(self, img: Image, drawn: None) -> Image:
        if img.dtype == np.uint8:
            return img
        return to_uint8(img if self.max_value == 255 else img * (255 / self.max_value))


@dataclass(eq=False, repr=False)
class ToFloat32(PhotometricAugmentor):
    """Converts to float32.

    Args:
        max_value: What 255 becomes: 255 or 1.
    """

    max_value: float = 255.0

    def change(self, img: Image, drawn: None) -> Image:
        if img.dtype == np.float32:
            return img
        values = img.astype(np.float32)
        return values if self.max_value == 255 else values * np.float32(self.max_value / 255)
