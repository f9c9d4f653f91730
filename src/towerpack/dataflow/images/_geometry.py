"""Flips, transposes and resizes."""

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
    """Swap left and right (`horiz`) of an image of `h` by `w` pixels, or top and bottom."""

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
    """Swap x and y."""

    def apply_image(self, img: Image) -> Image:
        return transposed(check_image(img))

    def apply_mask(self, mask: Image) -> Image:
        size_of(mask)
        return mask.swapaxes(0, 1)

    def move(self, points: Points) -> Points:
        return points[:, ::-1]


@dataclass(eq=False, repr=False)
class Flip(ImageAugmentor):
    """Swap left and right (`horiz`), or top and bottom (`vert`), with probability `prob`."""

    horiz: bool = False
    vert: bool = False
    prob: args.Probability = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.horiz) == bool(self.vert):
            what = f"Flip(horiz={self.horiz}, vert={self.vert}) does not say which way."
            raise ConfigError(what, expected="one of both; for both ways take two of them")

    def get_transform(self, img: Image, rng: RNG | None = None) -> Transform:
        if self.generator(rng).random() < self.prob:
            return FlipTransform(*size_of(img), bool(self.horiz))
        return NoOpTransform()


@dataclass(eq=False, repr=False)
class Transpose(ImageAugmentor):
    """Swap rows and columns of some of the images: of each with probability `prob`."""

    prob: args.Probability = 0.5

    def get_transform(self, img: Image, rng: RNG | None = None) -> Transform:
        return TransposeTransform() if self.generator(rng).random() < self.prob else NoOpTransform()


@dataclass(frozen=True)
class ResizeTransform(GeometricTransform):
    """Scale an image of `h` by `w` pixels to `new_h` by `new_w`.

    `interp="linear"` is fast; "area" looks better where much is taken away, and takes about seven
    times as long.
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
    """Scale every image to `shape`: (height, width), or one number for both.

    For `interp` see `ResizeTransform`.
    """

    shape: args.Size
    interp: args.Interpolation = "linear"

    def get_transform(self, img: Image, rng: RNG | None = None) -> Transform:
        return ResizeTransform(*size_of(img), *args.height_and_width(self.shape), self.interp)


@dataclass(eq=False, repr=False)
class ResizeShortestEdge(ImageAugmentor):
    """Scale an image so that its shorter edge gets the length `size`; the aspect ratio stays.

    For `interp` see `ResizeTransform`.
    """

    size: Annotated[int, integer_of, args.number(1)]
    interp: args.Interpolation = "linear"

    def get_transform(self, img: Image, rng: RNG | None = None) -> Transform:
        h, w = size_of(img)
        return ResizeTransform(h, w, *shortest_edge(h, w, self.size), self.interp)


@dataclass(eq=False, repr=False)
class RandomResize(ImageAugmentor):
    """Scale an image by random factors, or to a random size.

    Args:
        xrange: (lowest, highest) factor for the width, as floats; as integers, the width itself in
            pixels, both ends included.
        yrange: The same for the height; by default as `xrange`.
        minimum: Width and height are at least (x, y) pixels; one number is both.
        aspect_ratio_thres: By how much (as a fraction) the aspect ratio may change. After 50 draws
            that change it more the image keeps its size, or is scaled up to `minimum`. With 0 one
            factor is drawn for both, from `xrange`.
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
            what = "With aspect_ratio_thres=0 the width decides the height."
            raise ConfigError(what, fix="leave yrange out")

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
            # One factor, so large that both sides keep to the minimum.
            factor = max(new_w / w, least_w / w, least_h / h)
            return whole(factor * h), whole(factor * w)
        new_h = _draw_length(self.xrange if self.yrange is None else self.yrange, h, rng)
        return max(whole(new_h), least_h), max(whole(new_w), least_w)


def shortest_edge(h: int, w: int, size: int) -> tuple[int, int]:
    """Height and width with the same aspect ratio, the smaller of which is `size`."""
    if h < w:
        return size, whole(size * w / h)
    return whole(size * h / w), size


def _draw_length(limits: tuple[float, float], old: int, rng: RNG) -> float:
    if all(isinstance(limit, (int, np.integer)) for limit in limits):
        return float(rng.integers(int(limits[0]), int(limits[1]) + 1))
    return rng.uniform(*limits) * old


def whole(length: float) -> int:
    return max(1, math.floor(length + 0.5))
