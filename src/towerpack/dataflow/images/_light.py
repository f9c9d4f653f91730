"""Brightness, contrast and gamma; clipping and blur; number ranges and types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from towerpack._core.errors import ConfigError
from towerpack.dataflow.images._arguments import interval, number, whole_interval
from towerpack.dataflow.images._augmentor import RNG, PhotometricAugmentor
from towerpack.dataflow.images._image import (
    Floats,
    Image,
    channel_means,
    check_color,
    in_parts,
    luma,
    map_values,
    opencv,
    to_uint8,
)

Limits = Annotated[tuple[float, float], interval()]


@dataclass(eq=False, repr=False)
class Brightness(PhotometricAugmentor):
    """Adds one random number to all values.

    Args:
        delta: The number is uniform in -delta..delta.
        clip: Keep float images in 0..max_value. uint8 images always stay in 0..255.
        max_value: What white is in float images: 255 or 1.
    """

    delta: Annotated[float, number()]
    clip: bool = True
    max_value: float = 255.0

    def draw(self, img: Image, rng: RNG) -> float:
        return rng.uniform(-abs(self.delta), abs(self.delta))

    def change(self, img: Image, drawn: float) -> Image:
        return map_values(img, lambda values: values + drawn, self.max_value if self.clip else None)


@dataclass(eq=False, repr=False)
class BrightnessScale(PhotometricAugmentor):
    """Multiplies all values by one random factor.

    Args:
        range: The factor is uniform in (lowest, highest).
        clip: See `Brightness`, as `max_value`.
        max_value: White in float images.
    """

    range: Limits
    clip: bool = True
    max_value: float = 255.0

    def draw(self, img: Image, rng: RNG) -> float:
        return rng.uniform(*self.range)

    def change(self, img: Image, drawn: float) -> Image:
        return map_values(img, lambda values: values * drawn, self.max_value if self.clip else None)


@dataclass(eq=False, repr=False)
class Contrast(PhotometricAugmentor):
    """Moves all values away from their mean, or towards it: (x - mean) * factor + mean.

    Args:
        factor_range: The factor is uniform in (lowest, highest).
        rgb: The mean is that of each channel (`None`), or that of the grey image, the channels
            being red, green, blue (`True`) or blue, green, red (`False`).
        clip: See `Brightness`, as `max_value`.
        max_value: White in float images.
    """

    factor_range: Limits
    rgb: bool | None = None
    clip: bool = True
    max_value: float = 255.0

    def draw(self, img: Image, rng: RNG) -> float:
        return rng.uniform(*self.factor_range)

    def change(self, img: Image, drawn: float) -> Image:
        mean = channel_means(img)
        if self.rgb is not None:
            check_color(img, self)
            mean = mean @ luma(self.rgb)
        return map_values(
            img,
            lambda values: values * drawn + mean * (1 - drawn),
            self.max_value if self.clip else None,
        )


@dataclass(eq=False, repr=False)
class Gamma(PhotometricAugmentor):
    """Raises values, as fractions of white, to the power of 1 / (1 + gamma).

    Args:
        range: gamma is uniform in (lowest, highest); above 0 is brighter, and it is above -1.
        max_value: White in float images: 255 or 1.
    """

    range: Annotated[tuple[float, float], interval(above=-1)] = (-0.5, 0.5)
    max_value: float = 255.0

    def draw(self, img: Image, rng: RNG) -> float:
        return rng.uniform(*self.range)

    def change(self, img: Image, drawn: float) -> Image:
        white = 255.0 if img.dtype == np.uint8 else self.max_value
        power = 1 / (1 + drawn)
        return map_values(
            img, lambda values: np.clip(values / white, 0, 1) ** power * white, self.max_value
        )


@dataclass(eq=False, repr=False)
class Clip(PhotometricAugmentor):
    """Keeps values within limits.

    Args:
        min: The least.
        max: The greatest.
    """

    min: float = 0.0
    max: float = 255.0

    def __post_init__(self) -> None:
        # Either of them may be infinite.
        if not self.min <= self.max:
            raise ConfigError(f"{self!r} leaves no values.", expected="min <= max")

    def change(self, img: Image, drawn: None) -> Image:
        return map_values(img, lambda values: np.clip(values, self.min, self.max), None)


@dataclass(eq=False, repr=False)
class GaussianBlur(PhotometricAugmentor):
    """Blurs with a Gaussian window of random size.

    Args:
        size_range: The window has 2 * n + 1 pixels, n uniform in low..high-1.
        sigma_range: Its standard deviation is uniform in (lowest, highest), in pixels; 0 follows
            from the size.
        symmetric: The same for x and y.
        max_size: The predecessor's name for the `high` of `size_range`.
    """

    size_range: Annotated[tuple[int, int], whole_interval(0)] = (0, 3)
    sigma_range: Annotated[tuple[float, float], interval(0)] = (0.0, 0.0)
    symmetric: bool = True
    max_size: int | None = None

    def __post_init__(self) -> None:
        if self.max_size is not None:
            self.size_range = (0, self.max_size)
        super().__post_init__()

    def draw(self, img: Image, rng: RNG) -> tuple[list[int], list[float]]:
        count = 1 if self.symmetric else 2
        sizes = rng.integers(*self.size_range, count) * 2 + 1
        sigmas = rng.uniform(*self.sigma_range, count)
        return np.resize(sizes, 2).tolist(), np.resize(sigmas, 2).tolist()

    def change(self, img: Image, drawn: tuple[list[int], list[float]]) -> Image:
        cv2 = opencv()
        sizes, (sigma_x, sigma_y) = drawn
        return in_parts(
            img,
            lambda part, _: cv2.GaussianBlur(
                part, sizes, sigmaX=sigma_x, sigmaY=sigma_y, borderType=cv2.BORDER_REPLICATE
            ),
        )


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
