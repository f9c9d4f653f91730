from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from towerpack._core.errors import ConfigError
from towerpack.dataflow.arguments import integer_of
from towerpack.dataflow.images import _arguments as args
from towerpack.dataflow.images._augmentor import RNG, ImageAugmentor
from towerpack.dataflow.images._transform import GeometricTransform, NoOpTransform, Transform
from towerpack.dataflow.images.image import (
    Image,
    Points,
    check_image,
    check_size,
    mirrored,
    resize,
    resize_mask,
    size_of,
    transposed,
)

_TRIES = 50


@dataclass(frozen=True)
class FlipTransform(GeometricTransform):
    """Flip of an image of `h` by `w` pixels: left and right (`horiz`), or top and bottom."""

    h: int
    w: int
    horiz: bool = True

    def apply_image(self, img: Image) -> Image:
        check_size(img, self.h, self.w)
        return mirrored(check_image(img), 1 if self.horiz else 0)

    def apply_mask(self, mask: Image) -> Image:
        check_size(mask, self.h, self.w)
        return mask[:, ::-1] if self.horiz else mask[::-1]

    def move(self, points: Points) -> Points:
        axis, side = (0, self.w) if self.horiz else (1, self.h)
        moved = points.copy()
        moved[:, axis] = side - points[:, axis]
        return moved


@dataclass(frozen=True)
class TransposeTransform(GeometricTransform):
    """Swap of rows and columns."""

    def apply_image(self, img: Image) -> Image:
        return transposed(check_image(img))

    def apply_mask(self, mask: Image) -> Image:
        size_of(mask)
        return mask.swapaxes(0, 1)

    def move(self, points: Points) -> Points:
        return points[:, ::-1]


@dataclass(eq=False, repr=False)
class Flip(ImageAugmentor):
    """Flip left and right (`horiz`) or top and bottom (`vert`) with probability `prob`."""

    horiz: bool = False
    vert: bool = False
    prob: args.Probability = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.horiz) == bool(self.vert):
            what = f"Flip needs either horiz or vert, got horiz={self.horiz}, vert={self.vert}."
            raise ConfigError(what, fix="set only one of them, or use two Flip augmentors")

    def get_transform(self, img: Image, rng: RNG | None = None) -> Transform:
        if self.generator(rng).random() < self.prob:
            return FlipTransform(*size_of(img), bool(self.horiz))
        return NoOpTransform()


@dataclass(eq=False, repr=False)
class Transpose(ImageAugmentor):
    """Swap rows and columns of each image with probability `prob`."""

    prob: args.Probability = 0.5

    def get_transform(self, img: Image, rng: RNG | None = None) -> Transform:
        return TransposeTransform() if self.generator(rng).random() < self.prob else NoOpTransform()


@dataclass(frozen=True)
class ResizeTransform(GeometricTransform):
    """Resize of an image from `h` by `w` pixels to `new_h` by `new_w`.

    `interp="linear"` is fast. "area" looks better for strong reduction and takes about seven times
    as long.
    """

    h: int
    w: int
    new_h: int
    new_w: int
    interp: args.Interpolation = "linear"

    def apply_image(self, img: Image) -> Image:
        check_size(img, self.h, self.w)
        if (self.h, self.w) == (self.new_h, self.new_w):
            return img
        return resize(img, self.new_h, self.new_w, self.interp)

    def apply_mask(self, mask: Image) -> Image:
        check_size(mask, self.h, self.w)
        return resize_mask(mask, self.new_h, self.new_w)

    def move(self, points: Points) -> Points:
        return points * (self.new_w / self.w, self.new_h / self.h)


@dataclass(eq=False, repr=False)
class Resize(ImageAugmentor):
    """Resize every image to one size.

    Args:
        shape: (height, width), or one number for both.
        interp: See `ResizeTransform`.
    """

    shape: args.Size
    interp: args.Interpolation = "linear"

    def get_transform(self, img: Image, rng: RNG | None = None) -> Transform:
        return ResizeTransform(*size_of(img), *args.height_and_width(self.shape), self.interp)


@dataclass(eq=False, repr=False)
class ResizeShortestEdge(ImageAugmentor):
    """Resize an image to a given length of its shorter edge, and keep the aspect ratio.

    Args:
        size: Length of the shorter edge in pixels.
        interp: See `ResizeTransform`.
    """

    size: Annotated[int, integer_of, args.number(1)]
    interp: args.Interpolation = "linear"

    def get_transform(self, img: Image, rng: RNG | None = None) -> Transform:
        h, w = size_of(img)
        return ResizeTransform(h, w, *shortest_edge(h, w, self.size), self.interp)


@dataclass(eq=False, repr=False)
class RandomResize(ImageAugmentor):
    """Resize an image by random factors, or to a random size.

    Args:
        xrange: (lowest, highest) factor of the width as floats, or width in pixels as integers.
            Both bounds are included.
        yrange: The same for the height (default: `xrange`).
        minimum: Least (width, height) in pixels, or one number for both.
        aspect_ratio_thres: Largest relative change of the aspect ratio. After 50 draws that exceed
            it, the image keeps its size or is enlarged to `minimum`. With 0, width and height get
            the same factor, drawn from `xrange`.
        interp: See `ResizeTransform`.
    """

    xrange: args.Factors
    yrange: Annotated[tuple[float, float] | None, args.interval(above=0)] = None
    minimum: int | tuple[int, int] = (0, 0)
    aspect_ratio_thres: Annotated[float, args.number(0)] = 0.15
    interp: args.Interpolation = "linear"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._least: tuple[Any, Any] = args.pair_of(self.minimum) or (self.minimum, self.minimum)
        args.pair(least=0)(self._least, "minimum")
        if self.aspect_ratio_thres == 0 and self.yrange is not None:
            what = "yrange has no effect with aspect_ratio_thres=0, which scales both sides alike."
            raise ConfigError(what, fix="leave out yrange, or set a larger aspect_ratio_thres")

    def get_transform(self, img: Image, rng: RNG | None = None) -> Transform:
        rng = self.generator(rng)
        h, w = size_of(img)
        for _ in range(_TRIES):
            new_h, new_w = self._draw(h, w, rng)
            change = abs(new_w / new_h - w / h) / (w / h)
            if self.aspect_ratio_thres == 0 or change <= self.aspect_ratio_thres + 1e-5:
                return ResizeTransform(h, w, new_h, new_w, self.interp)
        factor = max(1, self._least[0] / w, self._least[1] / h)
        return ResizeTransform(h, w, whole(factor * h), whole(factor * w), self.interp)

    def _draw(self, h: int, w: int, rng: RNG) -> tuple[int, int]:
        least_w, least_h = self._least
        new_w = _draw_length(self.xrange, w, rng)
        if self.aspect_ratio_thres == 0:
            # Enlarge the factor so that both sides reach their minimum.
            factor = max(new_w / w, least_w / w, least_h / h)
            return whole(factor * h), whole(factor * w)
        new_h = _draw_length(self.xrange if self.yrange is None else self.yrange, h, rng)
        return max(whole(new_h), least_h), max(whole(new_w), least_w)


def shortest_edge(h: int, w: int, size: int) -> tuple[int, int]:
    """Return the (height, width) of the same aspect ratio whose shorter edge is `size`."""
    if h < w:
        return size, whole(size * w / h)
    return whole(size * h / w), size


def _draw_length(limits: tuple[float, float], old: int, rng: RNG) -> float:
    if all(isinstance(limit, (int, np.integer)) for limit in limits):
        return float(rng.integers(int(limits[0]), int(limits[1]) + 1))
    return rng.uniform(*limits) * old


def whole(length: float) -> int:
    return max(1, math.floor(length + 0.5))
