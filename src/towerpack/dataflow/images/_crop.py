"""Crops."""

from __future__ import annotations

import math
from dataclasses import dataclass

from towerpack._core.errors import ConfigError
from towerpack.dataflow._arguments import integer_of
from towerpack.dataflow.images._augmentor import RNG, ImageAugmentor
from towerpack.dataflow.images._image import (
    Image,
    Interpolation,
    height_and_width,
    interpolation,
    size_of,
)
from towerpack.dataflow.images._ranges import check_range
from towerpack.dataflow.images._resize import ResizeTransform, shortest_edge
from towerpack.dataflow.images._transform import (
    GeometricTransform,
    Points,
    Transform,
    TransformList,
)

_TRIES = 10


@dataclass(frozen=True)
class CropTransform(GeometricTransform):
    """Cuts `h` by `w` pixels out, of which the first is in row `y0` and column `x0`. A view."""

    y0: int
    x0: int
    h: int
    w: int

    def check(self, height: int, width: int, name: str | None = None) -> None:
        """Refuse an image that this does not lie in.

        Raises:
            ConfigError: It does not.
        """
        fits = 0 <= self.y0 <= height - self.h and 0 <= self.x0 <= width - self.w
        if not fits or self.h < 1 or self.w < 1:
            raise ConfigError(
                f"{self!r} does not lie in {name or 'an image'} of {height} x {width} pixels."
            )

    def apply_image(self, img: Image) -> Image:
        self.check(*size_of(img))
        return img[self.y0 : self.y0 + self.h, self.x0 : self.x0 + self.w]

    def apply_mask(self, mask: Image) -> Image:
        return self.apply_image(mask)

    def move(self, points: Points) -> Points:
        return points - (self.x0, self.y0)


@dataclass(eq=False, repr=False)
class RandomCrop(ImageAugmentor):
    """Cuts a part of fixed size out of a random place.

    Args:
        crop_shape: (height, width), or one number for both.
    """

    crop_shape: int | tuple[int, int]

    def __post_init__(self) -> None:
        height_and_width(self.crop_shape, "size")

    def get_transform(self, img: Image, rng: RNG | None = None) -> Transform:
        crop = height_and_width(self.crop_shape, "size")
        return draw_crop(size_of(img), crop, self.generator(rng))


@dataclass(eq=False, repr=False)
class CenterCrop(ImageAugmentor):
    """Cuts the middle out.

    Args:
        crop_shape: (height, width), or one number for both.
    """

    crop_shape: int | tuple[int, int]

    def __post_init__(self) -> None:
        height_and_width(self.crop_shape, "size")

    def get_transform(self, img: Image, rng: RNG | None = None) -> Transform:
        return center_crop(size_of(img), height_and_width(self.crop_shape, "size"))


@dataclass(eq=False, repr=False)
class RandomCropRandomShape(ImageAugmentor):
    """Cuts a part of random size out of a random place.

    Args:
        wmin: Least width.
        hmin: Least height.
        wmax: Greatest width; by default, and at most, the image's.
        hmax: Greatest height; by default, and at most, the image's.
        max_aspect_ratio: The longer side is at most this times the shorter one, where `wmin`,
            `wmax` and the image allow it.
    """

    wmin: int
    hmin: int
    wmax: int | None = None
    hmax: int | None = None
    max_aspect_ratio: float | None = None

    def __post_init__(self) -> None:
        for side, low, high in (("w", self.wmin, self.wmax), ("h", self.hmin, self.hmax)):
            integer_of(low, f"{side}min")
            if high is not None:
                integer_of(high, f"{side}max")
            if low < 1 or (high is not None and high < low):
                raise ConfigError(f"{self!r} has an empty range.", expected="1 <= min <= max")
        if self.max_aspect_ratio is not None and self.max_aspect_ratio < 1:
            raise ConfigError(f"{self!r}: a longer side is not shorter.", expected="1 or more")

    def get_transform(self, img: Image, rng: RNG | None = None) -> Transform:
        rng = self.generator(rng)
        height, width = size_of(img)
        if self.hmin > height or self.wmin > width:
            raise too_small((height, width), (self.hmin, self.wmin))
        h = int(rng.integers(self.hmin, min(self.hmax or height, height) + 1))
        low, high = self.wmin, min(self.wmax or width, width)
        if self.max_aspect_ratio is not None:
            low = min(high, max(low, math.ceil(h / self.max_aspect_ratio)))
            high = max(low, min(high, math.floor(h * self.max_aspect_ratio)))
        return draw_crop((height, width), (h, int(rng.integers(low, high + 1))), rng)


@dataclass(eq=False, repr=False)
class GoogleNetRandomCropAndResize(ImageAugmentor):
    """Cuts out a part of random area and aspect ratio, and scales it to one size.

    "Inception" cropping, as ImageNet models are trained with (Szegedy et al. 2015, section 6). If
    ten draws find no part that lies in the image, the middle is taken after `ResizeShortestEdge`.

    Args:
        crop_area_fraction: (least, greatest) fraction of the area.
        aspect_ratio_range: (least, greatest) width / height, or height / width.
        target_shape: (height, width) that it is scaled to, or one number for both.
        interp: How to interpolate.
    """

    crop_area_fraction: tuple[float, float] = (0.08, 1.0)
    aspect_ratio_range: tuple[float, float] = (0.75, 1.333)
    target_shape: int | tuple[int, int] = 224
    interp: Interpolation = "linear"

    def __post_init__(self) -> None:
        height_and_width(self.target_shape, "size")
        interpolation(self.interp)
        check_range(self.crop_area_fraction, "crop_area_fraction", greatest=1, above=0)
        check_range(self.aspect_ratio_range, "aspect_ratio_range", above=0)

    def get_transform(self, img: Image, rng: RNG | None = None) -> Transform:
        rng = self.generator(rng)
        size = size_of(img)
        target = height_and_width(self.target_shape, "size")
        for _ in range(_TRIES):
            h, w = self._draw(size, rng)
            if h <= size[0] and w <= size[1]:
                crop = draw_crop(size, (h, w), rng)
                return TransformList([crop, ResizeTransform(h, w, *target, self.interp)])
        return self._middle(size, target)

    def _draw(self, size: tuple[int, int], rng: RNG) -> tuple[int, int]:
        area = rng.uniform(*self.crop_area_fraction) * size[0] * size[1]
        ratio = rng.uniform(*self.aspect_ratio_range)
        w = max(1, math.floor(math.sqrt(area * ratio) + 0.5))
        h = max(1, math.floor(math.sqrt(area / ratio) + 0.5))
        return (w, h) if rng.random() < 0.5 else (h, w)

    def _middle(self, size: tuple[int, int], target: tuple[int, int]) -> Transform:
        new = shortest_edge(*size, max(target))
        return TransformList([ResizeTransform(*size, *new, self.interp), center_crop(new, target)])


def draw_crop(size: tuple[int, int], crop: tuple[int, int], rng: RNG) -> CropTransform:
    """A crop of a given (height, width) at a place where it fits, all as likely as each other.

    Raises:
        ConfigError: It does not fit.
    """
    free_y, free_x = _free(size, crop)
    return CropTransform(int(rng.integers(free_y + 1)), int(rng.integers(free_x + 1)), *crop)


def center_crop(size: tuple[int, int], crop: tuple[int, int]) -> CropTransform:
    """The middle (height, width) of an image.

    Raises:
        ConfigError: The crop does not fit.
    """
    free_y, free_x = _free(size, crop)
    return CropTransform(free_y // 2, free_x // 2, *crop)


def too_small(size: tuple[int, int], crop: tuple[int, int]) -> ConfigError:
    """The error for a crop that does not fit."""
    return ConfigError(
        f"A crop of {crop[0]} x {crop[1]} pixels does not fit an image of {size[0]} x {size[1]}.",
        fix="resize before (ResizeShortestEdge), or paste it on a larger background (CenterPaste)",
    )


def _free(size: tuple[int, int], crop: tuple[int, int]) -> tuple[int, int]:
    if crop[0] > size[0] or crop[1] > size[1]:
        raise too_small(size, crop)
    return size[0] - crop[0], size[1] - crop[1]
