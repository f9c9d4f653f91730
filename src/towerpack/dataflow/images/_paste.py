"""Images put on larger backgrounds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from towerpack._core.errors import ConfigError
from towerpack.dataflow.images._augmentor import RNG, ImageAugmentor
from towerpack.dataflow.images._image import (
    Image,
    channel_values,
    check_image,
    height_and_width,
    size_of,
)
from towerpack.dataflow.images._transform import GeometricTransform, Points, Transform


class BackgroundFiller(ABC):
    """Makes backgrounds. Derive from it and define `fill`, a function of its arguments alone."""

    @abstractmethod
    def fill(self, background_shape: tuple[int, int], img: Image) -> Image:
        """A new background of (height, width), with the channels and the dtype of `img`."""


@dataclass(frozen=True)
class ConstantBackgroundFiller(BackgroundFiller):
    """One value everywhere.

    Args:
        value: A number, or one for each channel.
    """

    value: Any = 0

    def fill(self, background_shape: tuple[int, int], img: Image) -> Image:
        channels = channel_values(self.value, img)
        # One number for all is several times as fast.
        fill = channels[0] if (channels == channels[0]).all() else channels.reshape(img.shape[2:])
        return np.full((*background_shape, *img.shape[2:]), fill, img.dtype)


@dataclass(frozen=True)
class PasteTransform(GeometricTransform):
    """Puts an image on a background of `h` by `w` pixels, its corner in row `y0` and column `x0`.

    Args:
        y0: The row.
        x0: The column.
        h: Height of the background.
        w: Width of the background.
        filler: Makes it.
        mask_value: The background of masks.
    """

    y0: int
    x0: int
    h: int
    w: int
    filler: BackgroundFiller
    mask_value: Any = 0

    def apply_image(self, img: Image) -> Image:
        return self._paste(check_image(img), self.filler)

    def apply_mask(self, mask: Image) -> Image:
        return self._paste(mask, ConstantBackgroundFiller(self.mask_value))

    def move(self, points: Points) -> Points:
        return points + np.array((self.x0, self.y0))

    def _paste(self, img: Image, filler: BackgroundFiller) -> Image:
        height, width = size_of(img)
        if self.y0 + height > self.h or self.x0 + width > self.w:
            raise too_large((height, width), (self.h, self.w))
        pasted = filler.fill((self.h, self.w), img)
        pasted[self.y0 : self.y0 + height, self.x0 : self.x0 + width] = img
        return pasted


@dataclass(eq=False, repr=False)
class CenterPaste(ImageAugmentor):
    """Puts every image in the middle of a background.

    Args:
        background_shape: (height, width) of the background, or one number for both.
        background_filler: Makes it; black by default.
        mask_value: The background of masks.
    """

    background_shape: int | tuple[int, int]
    background_filler: BackgroundFiller | None = None
    mask_value: Any = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        height_and_width(self.background_shape, "size")
        filler: Any = self.background_filler
        if filler is not None and not isinstance(filler, BackgroundFiller):
            raise ConfigError(
                f"{filler!r:.60} is no BackgroundFiller.",
                fix="ConstantBackgroundFiller(value) for one value everywhere",
            )

    def get_transform(self, img: Image, rng: RNG | None = None) -> Transform:
        shape = height_and_width(self.background_shape, "size")
        y0, x0 = self._corner(free_space(size_of(img), shape), self.generator(rng))
        filler = self.background_filler or ConstantBackgroundFiller()
        return PasteTransform(y0, x0, *shape, filler, self.mask_value)

    def _corner(self, free: tuple[int, int], rng: RNG) -> tuple[int, int]:
        return free[0] // 2, free[1] // 2


class RandomPaste(CenterPaste):
    """Puts every image on a random place of a background; arguments as for `CenterPaste`."""

    def _corner(self, free: tuple[int, int], rng: RNG) -> tuple[int, int]:
        return int(rng.integers(free[0] + 1)), int(rng.integers(free[1] + 1))


def free_space(size: tuple[int, int], shape: tuple[int, int]) -> tuple[int, int]:
    """How much higher and wider a background is than an image.

    Raises:
        ConfigError: It is not.
    """
    if size[0] > shape[0] or size[1] > shape[1]:
        raise too_large(size, shape)
    return shape[0] - size[0], shape[1] - size[1]


def too_large(size: tuple[int, int], shape: tuple[int, int]) -> ConfigError:
    """The error for an image that does not fit."""
    return ConfigError(
        f"An image of {size[0]} x {size[1]} pixels does not fit a background of "
        f"{shape[0]} x {shape[1]}.",
        fix="a larger background, or a Resize or CenterCrop before",
    )
