from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any

import numpy as np

from towerpack._core.errors import ConfigError
from towerpack.dataflow.arguments import integer_of
from towerpack.dataflow.images import _arguments as args
from towerpack.dataflow.images._augmentor import RNG, ImageAugmentor
from towerpack.dataflow.images._geometry import ResizeTransform, shortest_edge, whole
from towerpack.dataflow.images._transform import GeometricTransform, Transform, TransformList
from towerpack.dataflow.images.image import Image, Points, check_image, pixel_values, size_of

_TRIES = 10


@dataclass(frozen=True)
class CropTransform(GeometricTransform):
    """Crop of `h` by `w` pixels that starts in row `y0` and column `x0`. Returns a view."""

    y0: int
    x0: int
    h: int
    w: int

    def check(self, height: int, width: int, name: str | None = None) -> None:
        fits = 0 <= self.y0 <= height - self.h and 0 <= self.x0 <= width - self.w
        if not fits or min(self.h, self.w) < 1:
            size = f"{height} x {width} pixels"
            raise ConfigError(f"{self!r} must lie within {name or 'an image'} of {size}.")

    def apply_image(self, img: Image) -> Image:
        self.check(*size_of(img))
        return img[self.y0 : self.y0 + self.h, self.x0 : self.x0 + self.w]

    def apply_mask(self, mask: Image) -> Image:
        return self.apply_image(mask)

    def move(self, points: Points) -> Points:
        return points - (self.x0, self.y0)


@dataclass(eq=False, repr=False)
class CenterCrop(ImageAugmentor):
    """Crop the center of an image.

    Args:
        crop_shape: (height, width) of the crop, or one number for both.
    """

    crop_shape: args.Size
    _anywhere = False

    def get_transform(self, img: Image, rng: RNG | None = None) -> Transform:
        rng = self.generator(rng) if self._anywhere else None
        return draw_crop(size_of(img), args.height_and_width(self.crop_shape), rng)


class RandomCrop(CenterCrop):
    """Crop an image at a random place. The arguments are those of `CenterCrop`."""

    _anywhere = True


@dataclass(eq=False, repr=False)
class RandomCropRandomShape(ImageAugmentor):
    """Crop a part of random size at a random place.

    Args:
        wmin, hmin: Least width and height in pixels.
        wmax, hmax: Greatest width and height in pixels (default: the size of the image).
        max_aspect_ratio: Greatest ratio of the longer side to the shorter, if the widths allow it.
    """

    wmin: Annotated[int, integer_of, args.number(1)]
    hmin: Annotated[int, integer_of, args.number(1)]
    wmax: Annotated[int | None, integer_of] = None
    hmax: Annotated[int | None, integer_of] = None
    max_aspect_ratio: Annotated[float | None, args.number(1)] = None

    def get_transform(self, img: Image, rng: RNG | None = None) -> Transform:
        rng = self.generator(rng)
        height, width = size_of(img)
        free_space((height, width), (self.hmin, self.wmin))
        h = int(rng.integers(self.hmin, min(self.hmax or height, height) + 1))
        low, high = self.wmin, min(self.wmax or width, width)
        if self.max_aspect_ratio is not None:
            low = min(high, max(low, math.ceil(h / self.max_aspect_ratio)))
            high = max(low, min(high, math.floor(h * self.max_aspect_ratio)))
        return draw_crop((height, width), (h, int(rng.integers(low, high + 1))), rng)


@dataclass(eq=False, repr=False)
class GoogleNetRandomCropAndResize(ImageAugmentor):
    """Crop a part of random area and aspect ratio, and resize it to a fixed size.

    "Inception" crops are common for training on ImageNet (Szegedy et al. 2015, section 6). If ten
    draws find no part that lies within the image, apply `ResizeShortestEdge` and crop the center.

    Args:
        crop_area_fraction: (least, greatest) area of the part as a fraction of the image's area.
        aspect_ratio_range: (least, greatest) width / height, or height / width.
        target_shape: (height, width) of the result, or one number for both.
        interp: See `ResizeTransform`.
    """

    crop_area_fraction: args.Fractions = (0.08, 1.0)
    aspect_ratio_range: args.Factors = (0.75, 1.333)
    target_shape: args.Size = 224
    interp: args.Interpolation = "linear"

    def get_transform(self, img: Image, rng: RNG | None = None) -> Transform:
        rng = self.generator(rng)
        size, target = size_of(img), args.height_and_width(self.target_shape)
        for _ in range(_TRIES):
            h, w = self._draw(size, rng)
            if h <= size[0] and w <= size[1]:
                crop = draw_crop(size, (h, w), rng)
                return TransformList([crop, ResizeTransform(h, w, *target, self.interp)])
        new = shortest_edge(*size, max(target))
        resize = ResizeTransform(*size, *new, self.interp)
        return TransformList([resize, draw_crop(new, target, None)])

    def _draw(self, size: tuple[int, int], rng: RNG) -> tuple[int, int]:
        area = rng.uniform(*self.crop_area_fraction) * size[0] * size[1]
        ratio = rng.uniform(*self.aspect_ratio_range)
        w, h = whole(math.sqrt(area * ratio)), whole(math.sqrt(area / ratio))
        return (w, h) if rng.random() < 0.5 else (h, w)


class BackgroundFiller(ABC):
    """Base class of backgrounds on which images are pasted.

    A subclass defines `fill(background_shape, img)` without randomness. It returns an image of this
    (height, width), with the channels and the dtype of `img`.
    """

    @abstractmethod
    def fill(self, background_shape: tuple[int, int], img: Image) -> Image: ...


@dataclass(frozen=True)
class ConstantBackgroundFiller(BackgroundFiller):
    """Background of a single color: a number, or one for each channel."""

    value: Any = 0

    def fill(self, background_shape: tuple[int, int], img: Image) -> Image:
        pixel = pixel_values(self.value, img)
        first = pixel.item(0)
        fill = first if (pixel == first).all() else pixel  # a single number is faster
        return np.full((*background_shape, *img.shape[2:]), fill, img.dtype)


@dataclass(frozen=True)
class PasteTransform(GeometricTransform):
    """Paste an image on a background of `h` by `w` pixels, at row `y0` and column `x0`.

    `filler` creates the background of images. Masks are filled with `mask_value`.
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
        free_space((self.h, self.w), (self.y0 + height, self.x0 + width))
        pasted = filler.fill((self.h, self.w), img)
        pasted[self.y0 : self.y0 + height, self.x0 : self.x0 + width] = img
        return pasted


@dataclass(eq=False, repr=False)
class CenterPaste(ImageAugmentor):
    """Paste every image in the center of a background.

    Args:
        background_shape: (height, width) of the background, or one number for both.
        background_filler: Creates the background of images (default: black).
        mask_value: Background of masks.
    """

    background_shape: args.Size
    background_filler: BackgroundFiller | None = None
    _: KW_ONLY
    mask_value: Any = 0
    _anywhere = False

    def get_transform(self, img: Image, rng: RNG | None = None) -> Transform:
        size, shape = size_of(img), args.height_and_width(self.background_shape)
        place = draw_place(shape, size, self.generator(rng) if self._anywhere else None)
        filler = self.background_filler or ConstantBackgroundFiller()
        return PasteTransform(*place, *shape, filler, self.mask_value)


class RandomPaste(CenterPaste):
    """Paste every image at a random place of a background; see `CenterPaste`."""

    _anywhere = True


def draw_crop(size: tuple[int, int], crop: tuple[int, int], rng: RNG | None) -> CropTransform:
    return CropTransform(*draw_place(size, crop, rng), *crop)


def draw_place(whole: tuple[int, int], part: tuple[int, int], rng: RNG | None) -> tuple[int, int]:
    """Draw the first row and column of a part. Without `rng`, center the part."""
    free = free_space(whole, part)
    if rng is None:
        return free[0] // 2, free[1] // 2
    return int(rng.integers(free[0] + 1)), int(rng.integers(free[1] + 1))


def free_space(whole: tuple[int, int], part: tuple[int, int]) -> tuple[int, int]:
    """Return the number of rows and columns outside of a part, or raise `ConfigError`."""
    (height, width), (h, w) = whole, part
    if h > height or w > width:
        what = f"A part of {h} x {w} pixels does not fit into an image of {height} x {width}."
        fix = "resize the image first, or paste the image on a larger background (CenterPaste)"
        raise ConfigError(what, fix=fix)
    return height - h, width - w
