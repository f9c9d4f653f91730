"""Random erasing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from towerpack._core.errors import ConfigError
from towerpack.dataflow.images._augmentor import RNG, PhotometricAugmentor
from towerpack.dataflow.images._flip import check_probability
from towerpack.dataflow.images._image import Image, pixel_values, size_of
from towerpack.dataflow.images._noise import draw_seed
from towerpack.dataflow.images._ranges import check_range

_TRIES = 100


@dataclass(eq=False, repr=False)
class RandomErasing(PhotometricAugmentor):
    """Fills a rectangle of random area, shape and place in some of the images. Masks stay.

    Zhong et al. 2017, https://arxiv.org/abs/1708.04896, algorithm 1. An image in which a hundred
    draws find no place for a rectangle stays as it is.

    Args:
        prob: How likely.
        area: (least, greatest) fraction of the image's area.
        aspect_ratio: (least, greatest) height / width; a shape is as likely as its transpose if
            they are 1 / r and r.
        fill: "random" values of each pixel (the paper's best), a number, or one for each channel.
        max_value: Random values are below it in float images: 255 or 1. uint8 has 0..255.
    """

    prob: float = 0.5
    area: tuple[float, float] = (0.02, 0.4)
    aspect_ratio: tuple[float, float] = (0.3, 1 / 0.3)
    fill: Any = "random"
    max_value: float = 255.0

    def __post_init__(self) -> None:
        check_probability(self.prob)
        check_range(self.area, "area", greatest=1, above=0)
        check_range(self.aspect_ratio, "aspect_ratio", above=0)
        if isinstance(self.fill, str) and self.fill != "random":
            raise ConfigError(f"There is no fill={self.fill!r}.", expected='"random", or numbers')

    def draw(self, img: Image, rng: RNG) -> tuple[int, int, int, int, int] | None:
        if rng.random() >= self.prob:
            return None
        height, width = size_of(img)
        low, high = map(math.log, self.aspect_ratio)
        for _ in range(_TRIES):
            area = rng.uniform(*self.area) * height * width
            ratio = math.exp(rng.uniform(low, high))
            h, w = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < h <= height and 0 < w <= width:
                y, x = int(rng.integers(height - h + 1)), int(rng.integers(width - w + 1))
                return y, x, h, w, draw_seed(rng)
        return None

    def change(self, img: Image, drawn: tuple[int, int, int, int, int] | None) -> Image:
        if drawn is None:
            return img
        y, x, h, w, seed = drawn
        erased = img.copy()
        erased[y : y + h, x : x + w] = self._values(img, (h, w), seed)
        return erased

    def _values(self, img: Image, size: tuple[int, int], seed: int) -> Any:
        if not isinstance(self.fill, str):
            return pixel_values(self.fill, img)
        rng = np.random.default_rng(seed)
        shape = (*size, *img.shape[2:])
        if img.dtype == np.uint8:
            return rng.integers(256, size=shape, dtype=np.uint8)
        return rng.random(shape, np.float32) * np.float32(self.max_value)
