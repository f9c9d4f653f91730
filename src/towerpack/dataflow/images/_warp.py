"""Rotations, shifts and what else a matrix can do."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError
from towerpack.dataflow.images._arguments import (
    Border,
    Interpolation,
    border_mode,
    interpolation,
    interval,
    number,
    pair,
)
from towerpack.dataflow.images._augmentor import RNG, ImageAugmentor
from towerpack.dataflow.images._image import Image, size_of
from towerpack.dataflow.images._resampling import warp_affine, warp_mask
from towerpack.dataflow.images._transform import GeometricTransform, Points, Transform

Matrix = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class WarpAffineTransform(GeometricTransform):
    """Moves pixels by a matrix.

    Args:
        mat: [2, 3], from pixel indices (x, y) of the image to those of the result, as in
            `cv2.warpAffine`. The centres of pixels have whole indices there, so points are moved by
            it half a pixel to the side.
        dsize: Width and height of the result, in the order of OpenCV.
        interp: How to interpolate between pixels of images; masks take the nearest one.
        border: What lies outside: "constant", "replicate", "reflect", "reflect_101" or "wrap".
        border_value: Of a constant border: one number, or one for each channel.
        mask_value: The label of a constant border.
    """

    mat: Matrix
    dsize: tuple[int, int]
    interp: Interpolation = "linear"
    border: Border = "constant"
    border_value: Any = 0
    mask_value: Any = 0

    def __post_init__(self) -> None:
        mat = np.asarray(self.mat, np.float64)
        if mat.shape != (2, 3):
            raise ConfigError(f"The shape of the matrix is {list(mat.shape)}.", expected="[2, 3]")
        object.__setattr__(self, "mat", mat)

    def apply_image(self, img: Image) -> Image:
        interp, border = interpolation(self.interp), border_mode(self.border)
        return warp_affine(img, self.mat, self.dsize, interp, border, self.border_value)

    def apply_mask(self, mask: Image) -> Image:
        size_of(mask)
        border = border_mode(self.border)
        return warp_mask(mask, self.mat, self.dsize, border, self.mask_value)

    def move(self, points: Points) -> Points:
        return (points - 0.5) @ self.mat[:, :2].T + self.mat[:, 2] + 0.5


class _Warp(ImageAugmentor):
    """Base of augmentors that draw a matrix, and keep the size of the image."""

    interp: Interpolation = "nearest"
    border: Border
    border_value: Any
    mask_value: Any

    def matrix(self, h: int, w: int, rng: RNG) -> Matrix:
        """Draw the matrix for an image of `h` by `w` pixels."""
        raise NotImplementedError

    def get_transform(self, img: Image, rng: RNG | None = None) -> Transform:
        h, w = size_of(img)
        return WarpAffineTransform(
            self.matrix(h, w, self.generator(rng)),
            (w, h),
            self.interp,
            self.border,
            self.border_value,
            self.mask_value,
        )


@dataclass(eq=False, repr=False)
class Shift(_Warp):
    """Shifts by whole pixels.

    Args:
        horiz_frac: At most this fraction of the width, to the left or to the right.
        vert_frac: At most this fraction of the height, up or down.
        border: See `WarpAffineTransform`, as all that follow.
        border_value: Of a constant border.
        mask_value: Of a constant border.
    """

    horiz_frac: Annotated[float, number(0, 1)] = 0.0
    vert_frac: Annotated[float, number(0, 1)] = 0.0
    border: Border = "replicate"
    border_value: Any = 0
    mask_value: Any = 0

    def matrix(self, h: int, w: int, rng: RNG) -> Matrix:
        shift = _draw_shift((h, w), (self.horiz_frac, self.vert_frac), rng)
        return affine(np.eye(2), (0.0, 0.0), shift)


@dataclass(eq=False, repr=False)
class Rotation(_Warp):
    """Rotates by a random angle about a random centre. The image keeps its size.

    Args:
        max_deg: The angle is uniform in -max_deg..max_deg; positive is counter-clockwise.
        center_range: The centre is uniform in this range of the width, and of the height.
        interp: See `WarpAffineTransform`, as `border` and the values.
        border: What fills the corners.
        step_deg: Only multiples of it, each as likely as the others.
        border_value: Of a constant border.
        mask_value: Of a constant border.
    """

    max_deg: Annotated[float, number(0)]
    center_range: Annotated[tuple[float, float], interval()] = (0.0, 1.0)
    interp: Interpolation = "linear"
    border: Border = "replicate"
    step_deg: Annotated[float | None, number(above=0)] = None
    border_value: Any = 0
    mask_value: Any = 0

    def matrix(self, h: int, w: int, rng: RNG) -> Matrix:
        x, y = rng.uniform(*self.center_range, 2)
        degrees = _draw_degrees(self.max_deg, self.step_deg, rng)
        return affine(rotation(degrees), (x * w, y * h))


@dataclass(eq=False, repr=False)
class RotationAndCropValid(ImageAugmentor):
    """Rotates by a random angle and keeps the largest upright rectangle that lies in the image.

    Args:
        max_deg: The angle is uniform in -max_deg..max_deg; positive is counter-clockwise.
        interp: How to interpolate.
        step_deg: Only multiples of it, each as likely as the others.
    """

    max_deg: Annotated[float, number(0)]
    interp: Interpolation = "linear"
    step_deg: Annotated[float | None, number(above=0)] = None

    def get_transform(self, img: Image, rng: RNG | None = None) -> Transform:
        h, w = size_of(img)
        degrees = _draw_degrees(self.max_deg, self.step_deg, self.generator(rng))
        new_h, new_w = _largest_rectangle(h, w, degrees)
        matrix = affine(rotation(degrees), (w / 2, h / 2), ((new_w - w) / 2, (new_h - h) / 2))
        # The border shows where the nearest pixels' halves do not reach.
        return WarpAffineTransform(matrix, (new_w, new_h), self.interp, "replicate")


@dataclass(eq=False, repr=False)
class Affine(_Warp):
    """Scales, shears, rotates and shifts, about the centre. The image keeps its size.

    Args:
        scale: (smallest, largest) factor; `None` is 1.
        translate_frac: At most this (fraction of the width, fraction of the height), in whole
            pixels, either way; `None` is none.
        rotate_max_deg: The angle is uniform in -rotate_max_deg..rotate_max_deg.
        shear: The angle by which vertical lines lean is uniform in -shear..shear, in degrees.
        interp: See `WarpAffineTransform`, as `border` and the values.
        border: What fills the corners.
        border_value: Of a constant border.
        mask_value: Of a constant border.
    """

    scale: Annotated[tuple[float, float] | None, interval(above=0)] = None
    translate_frac: Annotated[tuple[float, float] | None, pair(least=0)] = None
    rotate_max_deg: Annotated[float, number(0)] = 0.0
    shear: Annotated[float, number(0)] = 0.0
    interp: Interpolation = "linear"
    border: Border = "replicate"
    border_value: Any = 0
    mask_value: Any = 0

    def matrix(self, h: int, w: int, rng: RNG) -> Matrix:
        factor = rng.uniform(*((1.0, 1.0) if self.scale is None else self.scale))
        fractions = (0.0, 0.0) if self.translate_frac is None else self.translate_frac
        shift = _draw_shift((h, w), fractions, rng)
        lean = math.radians(rng.uniform(-self.shear, self.shear))
        degrees = rng.uniform(-self.rotate_max_deg, self.rotate_max_deg)
        sheared = np.array([[1.0, math.sin(lean)], [0.0, math.cos(lean)]])
        return affine(factor * rotation(degrees) @ sheared, (w / 2, h / 2), shift)


def rotation(degrees: float) -> Matrix:
    """[2, 2]; counter-clockwise as one sees it, y pointing down."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return np.array([[cos, sin], [-sin, cos]])


def affine(
    linear: Matrix, center: tuple[float, float], shift: tuple[float, float] = (0.0, 0.0)
) -> Matrix:
    """The matrix, in pixel indices, that does `linear` about a point (x, y) and then shifts."""
    fixed = np.array(center) - 0.5
    return np.column_stack([linear, fixed - linear @ fixed + shift])


def _draw_shift(size: tuple[int, int], fractions: tuple[float, float], rng: RNG) -> tuple[int, int]:
    """Whole pixels (x, y), each at most a fraction of the side either way."""
    # A little more, so that 0.29 of 100 is 29.
    limits = np.floor(np.array(fractions) * size[::-1] + 1e-9).astype(int)
    x, y = rng.integers(-limits, limits, endpoint=True).tolist()
    return x, y


def _draw_degrees(max_deg: float, step_deg: float | None, rng: RNG) -> float:
    """An angle in -max_deg..max_deg."""
    if step_deg is None:
        return rng.uniform(-max_deg, max_deg)
    steps = math.floor(max_deg / step_deg + 1e-9)
    return float(rng.integers(-steps, steps + 1)) * step_deg


def _largest_rectangle(h: int, w: int, degrees: float) -> tuple[int, int]:
    """Height and width of the largest upright rectangle in a rotated one of h by w."""
    sin, cos = abs(math.sin(math.radians(degrees))), abs(math.cos(math.radians(degrees)))
    short, long = min(h, w), max(h, w)
    if short <= 2 * sin * cos * long:
        # Two corners touch the long sides, at the middle of the short ones.
        first, second = short / 2 / max(sin, 1e-12), short / 2 / max(cos, 1e-12)
        new_w, new_h = (first, second) if w >= h else (second, first)
    else:
        double = cos * cos - sin * sin
        new_w, new_h = (w * cos - h * sin) / double, (h * cos - w * sin) / double
    return max(1, math.floor(new_h + 1e-6)), max(1, math.floor(new_w + 1e-6))
