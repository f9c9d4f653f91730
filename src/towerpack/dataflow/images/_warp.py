"""Rotations, shifts and what else a matrix can do."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError
from towerpack.dataflow.images._augmentor import RNG, ImageAugmentor
from towerpack.dataflow.images._image import (
    Image,
    Interpolation,
    border_mode,
    interpolation,
    size_of,
)
from towerpack.dataflow.images._ranges import check_number, check_pair, check_range
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
    border: int | str = "constant"
    border_value: Any = 0
    mask_value: Any = 0

    def __post_init__(self) -> None:
        mat = np.asarray(self.mat, np.float64)
        if mat.shape != (2, 3):
            raise ConfigError(f"The shape of the matrix is {list(mat.shape)}.", expected="[2, 3]")
        object.__setattr__(self, "mat", mat)

    def apply_image(self, img: Image) -> Image:
        return warp_affine(
            img,
            self.mat,
            self._size,
            interpolation(self.interp),
            border_mode(self.border),
            self.border_value,
        )

    def apply_mask(self, mask: Image) -> Image:
        size_of(mask)
        return warp_mask(mask, self.mat, self._size, border_mode(self.border), self.mask_value)

    def move(self, points: Points) -> Points:
        return (points - 0.5) @ self.mat[:, :2].T + self.mat[:, 2] + 0.5

    @property
    def _size(self) -> tuple[int, int]:
        return self.dsize[1], self.dsize[0]


@dataclass(eq=False, repr=False)
class Shift(ImageAugmentor):
    """Shifts by whole pixels.

    Args:
        horiz_frac: At most this fraction of the width, to the left or to the right.
        vert_frac: At most this fraction of the height, up or down.
        border: See `WarpAffineTransform`, as all that follow.
        border_value: Of a constant border.
        mask_value: Of a constant border.
    """

    horiz_frac: float = 0.0
    vert_frac: float = 0.0
    border: int | str = "replicate"
    border_value: Any = 0
    mask_value: Any = 0

    def __post_init__(self) -> None:
        border_mode(self.border)
        check_number(self.horiz_frac, "horiz_frac", 0, 1)
        check_number(self.vert_frac, "vert_frac", 0, 1)

    def get_transform(self, img: Image, rng: RNG | None = None) -> Transform:
        h, w = size_of(img)
        shift = draw_shift((h, w), (self.horiz_frac, self.vert_frac), self.generator(rng))
        return WarpAffineTransform(
            affine(np.eye(2), (0.0, 0.0), shift),
            (w, h),
            "nearest",  # by whole pixels: nothing to interpolate
            self.border,
            self.border_value,
            self.mask_value,
        )


@dataclass(eq=False, repr=False)
class Rotation(ImageAugmentor):
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

    max_deg: float
    center_range: tuple[float, float] = (0.0, 1.0)
    interp: Interpolation = "linear"
    border: int | str = "replicate"
    step_deg: float | None = None
    border_value: Any = 0
    mask_value: Any = 0

    def __post_init__(self) -> None:
        interpolation(self.interp)
        border_mode(self.border)
        check_range(self.center_range, "center_range")
        _check_degrees(self.max_deg, self.step_deg)

    def get_transform(self, img: Image, rng: RNG | None = None) -> Transform:
        rng = self.generator(rng)
        h, w = size_of(img)
        x, y = rng.uniform(*self.center_range, 2)
        degrees = draw_degrees(self.max_deg, self.step_deg, rng)
        return WarpAffineTransform(
            affine(rotation(degrees), (x * w, y * h)),
            (w, h),
            self.interp,
            self.border,
            self.border_value,
            self.mask_value,
        )


@dataclass(eq=False, repr=False)
class RotationAndCropValid(ImageAugmentor):
    """Rotates by a random angle and keeps the largest upright rectangle that lies in the image.

    Args:
        max_deg: The angle is uniform in -max_deg..max_deg; positive is counter-clockwise.
        interp: How to interpolate.
        step_deg: Only multiples of it, each as likely as the others.
    """

    max_deg: float
    interp: Interpolation = "linear"
    step_deg: float | None = None

    def __post_init__(self) -> None:
        interpolation(self.interp)
        _check_degrees(self.max_deg, self.step_deg)

    def get_transform(self, img: Image, rng: RNG | None = None) -> Transform:
        h, w = size_of(img)
        degrees = draw_degrees(self.max_deg, self.step_deg, self.generator(rng))
        new_h, new_w = largest_rectangle(h, w, degrees)
        matrix = affine(rotation(degrees), (w / 2, h / 2), ((new_w - w) / 2, (new_h - h) / 2))
        # The border shows where the nearest pixels' halves do not reach.
        return WarpAffineTransform(matrix, (new_w, new_h), self.interp, "replicate")


@dataclass(eq=False, repr=False)
class Affine(ImageAugmentor):
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

    scale: tuple[float, float] | None = None
    translate_frac: tuple[float, float] | None = None
    rotate_max_deg: float = 0.0
    shear: float = 0.0
    interp: Interpolation = "linear"
    border: int | str = "replicate"
    border_value: Any = 0
    mask_value: Any = 0

    def __post_init__(self) -> None:
        interpolation(self.interp)
        border_mode(self.border)
        if self.scale is not None:
            check_range(self.scale, "scale", above=0)
        if self.translate_frac is not None:
            check_pair(self.translate_frac, "translate_frac", 0)
        check_number(self.rotate_max_deg, "rotate_max_deg", 0)
        check_number(self.shear, "shear", 0)

    def get_transform(self, img: Image, rng: RNG | None = None) -> Transform:
        rng = self.generator(rng)
        h, w = size_of(img)
        factor = rng.uniform(*((1.0, 1.0) if self.scale is None else self.scale))
        fractions = (0.0, 0.0) if self.translate_frac is None else self.translate_frac
        shift = draw_shift((h, w), fractions, rng)
        lean = math.radians(rng.uniform(-self.shear, self.shear))
        degrees = rng.uniform(-self.rotate_max_deg, self.rotate_max_deg)
        sheared = np.array([[1.0, math.sin(lean)], [0.0, math.cos(lean)]])
        return WarpAffineTransform(
            affine(factor * rotation(degrees) @ sheared, (w / 2, h / 2), shift),
            (w, h),
            self.interp,
            self.border,
            self.border_value,
            self.mask_value,
        )


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


def draw_shift(size: tuple[int, int], fractions: tuple[float, float], rng: RNG) -> tuple[int, int]:
    """Whole pixels (x, y), each at most a fraction of the side either way."""
    # A little more, so that 0.29 of 100 is 29.
    limits = np.floor(np.array(fractions) * size[::-1] + 1e-9).astype(int)
    x, y = rng.integers(-limits, limits, endpoint=True).tolist()
    return x, y


def draw_degrees(max_deg: float, step_deg: float | None, rng: RNG) -> float:
    """An angle in -max_deg..max_deg."""
    if step_deg is None:
        return rng.uniform(-max_deg, max_deg)
    steps = math.floor(max_deg / step_deg + 1e-9)
    return float(rng.integers(-steps, steps + 1)) * step_deg


def largest_rectangle(h: int, w: int, degrees: float) -> tuple[int, int]:
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


def _check_degrees(max_deg: float, step_deg: float | None) -> None:
    check_number(max_deg, "max_deg", 0)
    if step_deg is None:
        return
    check_number(step_deg, "step_deg")
    if step_deg <= 0:
        raise ConfigError(f"step_deg is {step_deg!r}.", expected="more than 0, or None")
