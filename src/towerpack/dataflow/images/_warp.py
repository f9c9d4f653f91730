"""Affine transforms (rotation, shift, scale, shear) and elastic deformation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError
from towerpack.dataflow.images import _arguments as args
from towerpack.dataflow.images._augmentor import RNG, ImageAugmentor
from towerpack.dataflow.images._transform import GeometricTransform, Transform
from towerpack.dataflow.images.image import (
    Image,
    Points,
    check_image,
    check_size,
    in_parts,
    opencv,
    pixel_values,
    size_of,
)

Matrix = NDArray[np.float64]

_STEPS = 60
_STRIDE = 2.0  # limit of a Newton step relative to the error, for images that are almost folded
_PRECISION = 1e-4  # pixels


@dataclass(frozen=True, eq=False)
class WarpAffineTransform(GeometricTransform):
    """Affine transform given by a matrix.

    Args:
        mat: [2, 3] matrix from pixel indices (x, y) of the image to those of the result. As in
            `cv2.warpAffine`, centers of pixels have integer coordinates.
        dsize: (width, height) of the result, in the order of OpenCV.
        interp: Interpolation of images. Masks use the nearest pixel.
        border: Extrapolation: "constant", "replicate", "reflect", "reflect_101" or "wrap".
        border_value: Color for a constant border: a number, or one for each channel.
        mask_value: Label for a constant border.
    """

    mat: Matrix
    dsize: tuple[int, int]
    interp: args.Interpolation = "linear"
    border: args.Border = "constant"
    border_value: Any = 0
    mask_value: Any = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "mat", np.asarray(self.mat, np.float64))

    def apply_image(self, img: Image) -> Image:
        values = np.atleast_1d(pixel_values(self.border_value, check_image(img)))
        interp = args.interpolation(self.interp)
        return in_parts(
            img, lambda part, channels: self._warp(part, interp, values[channels].tolist())
        )

    def apply_mask(self, mask: Image) -> Image:
        # Warp the indices of the pixels, so that labels may have any dtype.
        numbers = np.arange(math.prod(size_of(mask)), dtype=np.int32).reshape(mask.shape[:2])
        return _pick(mask, self._warp(numbers, 0, -1), self.mask_value)

    def _warp(self, img: Image, interp: int, value: Any) -> Image:
        warp, border = opencv().warpAffine, args.border_mode(self.border)
        return warp(img, self.mat, self.dsize, flags=interp, borderMode=border, borderValue=value)

    def move(self, points: Points) -> Points:
        return (points - 0.5) @ self.mat[:, :2].T + self.mat[:, 2] + 0.5


class _Warp(ImageAugmentor):
    interp: args.Interpolation = "nearest"
    border: args.Border
    border_value: Any
    mask_value: Any

    def matrix(self, h: int, w: int, rng: RNG) -> Matrix:
        raise NotImplementedError

    def get_transform(self, img: Image, rng: RNG | None = None) -> Transform:
        h, w = size_of(img)
        matrix = self.matrix(h, w, self.generator(rng))
        outside = self.border, self.border_value, self.mask_value
        return WarpAffineTransform(matrix, (w, h), self.interp, *outside)


@dataclass(eq=False, repr=False)
class Shift(_Warp):
    """Shift by a random number of whole pixels.

    Args:
        horiz_frac, vert_frac: Largest shift in either direction as a fraction of width and height.
        border, border_value, mask_value: See `WarpAffineTransform`.
    """

    horiz_frac: Annotated[float, args.number(0, 1)] = 0.0
    vert_frac: Annotated[float, args.number(0, 1)] = 0.0
    border: args.Border = "replicate"
    border_value: Any = 0
    mask_value: Any = 0

    def matrix(self, h: int, w: int, rng: RNG) -> Matrix:
        shift = _draw_shift((h, w), (self.horiz_frac, self.vert_frac), rng)
        return affine(np.eye(2), (0.0, 0.0), shift)


@dataclass(eq=False, repr=False)
class Rotation(_Warp):
    """Rotate by a random angle about a random center. The image keeps its size.

    Args:
        max_deg: Largest angle in degrees. Positive angles are counter-clockwise.
        center_range: (lowest, highest) position of the center, as a fraction of width and height.
        interp, border, border_value, mask_value: See `WarpAffineTransform`.
        step_deg: Draw only multiples of this angle.
    """

    max_deg: Annotated[float, args.number(0)]
    center_range: Annotated[tuple[float, float], args.interval()] = (0.0, 1.0)
    interp: args.Interpolation = "linear"
    border: args.Border = "replicate"
    step_deg: Annotated[float | None, args.number(above=0)] = None
    border_value: Any = 0
    mask_value: Any = 0

    def matrix(self, h: int, w: int, rng: RNG) -> Matrix:
        x, y = rng.uniform(*self.center_range, 2)
        degrees = _draw_degrees(self.max_deg, self.step_deg, rng)
        return affine(rotation(degrees), (x * w, y * h))


@dataclass(eq=False, repr=False)
class RotationAndCropValid(ImageAugmentor):
    """Rotate by a random angle and crop the largest upright rectangle inside the rotated image.

    Args:
        max_deg, interp, step_deg: See `Rotation`.
    """

    max_deg: Annotated[float, args.number(0)]
    interp: args.Interpolation = "linear"
    step_deg: Annotated[float | None, args.number(above=0)] = None

    def get_transform(self, img: Image, rng: RNG | None = None) -> Transform:
        h, w = size_of(img)
        degrees = _draw_degrees(self.max_deg, self.step_deg, self.generator(rng))
        new_h, new_w = _largest_rectangle(h, w, degrees)
        matrix = affine(rotation(degrees), (w / 2, h / 2), ((new_w - w) / 2, (new_h - h) / 2))
        # Pixels at the edge may still need half a pixel of border.
        return WarpAffineTransform(matrix, (new_w, new_h), self.interp, "replicate")


@dataclass(eq=False, repr=False)
class Affine(_Warp):
    """Scale, shear, rotate and shift about the center. The image keeps its size.

    Args:
        scale: (smallest, largest) factor (default: 1).
        translate_frac: Largest shift in either direction, as fractions of (width, height). Shifts
            are rounded to whole pixels (default: no shift).
        rotate_max_deg: Largest angle of rotation in degrees, in either direction.
        shear: Largest angle of vertical lines after shearing in degrees, in either direction.
        interp, border, border_value, mask_value: See `WarpAffineTransform`.
    """

    scale: Annotated[tuple[float, float] | None, args.interval(above=0)] = None
    translate_frac: Annotated[tuple[float, float] | None, args.pair(least=0)] = None
    rotate_max_deg: Annotated[float, args.number(0)] = 0.0
    shear: Annotated[float, args.number(0)] = 0.0
    interp: args.Interpolation = "linear"
    border: args.Border = "replicate"
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


@dataclass(frozen=True, eq=False)
class DeformTransform(GeometricTransform):
    """Elastic deformation by displacements that decay around anchors.

    The result at a point p shows the image at p plus a weighted sum of pulls. The weight of a pull
    at distance d from its anchor is exp(-d**2 / (2 * sigma**2)).

    Args:
        h, w: Height and width of the image.
        anchors: [n, 2] points (x, y) as fractions of width and height.
        pulls: [n, 2] displacements (x, y) in pixels.
        sigma: Width of the weights, as a fraction of width and height.
    """

    h: int
    w: int
    anchors: Points
    pulls: Points
    sigma: float

    def apply_image(self, img: Image) -> Image:
        check_size(check_image(img), self.h, self.w)
        x, y = (source.astype(np.float32) - np.float32(0.5) for source in self._sources())
        cv2 = opencv()
        return in_parts(
            img, lambda part, _: cv2.remap(part, x, y, cv2.INTER_LINEAR, None, cv2.BORDER_REPLICATE)
        )

    def apply_mask(self, mask: Image) -> Image:
        check_size(mask, self.h, self.w)
        x, y = (np.floor(source).astype(np.int64) for source in self._sources())
        return _pick(mask, y.clip(0, self.h - 1) * self.w + x.clip(0, self.w - 1), 0)

    def move(self, points: Points) -> Points:
        # Newton's method inverts the displacement.
        moved = points.copy()
        for _ in range(_STEPS):
            pull, slope = self._pull(moved)
            missing = moved + pull - points
            # The comparison is false for NaN, so points that are NaN stay NaN.
            if not (np.abs(missing) > _PRECISION).any():
                return moved
            (a, b), (c, d) = np.moveaxis(np.eye(2) + slope, 0, -1)
            determinant = a * d - b * c
            determinant[determinant == 0] = _PRECISION
            x, y = missing.T
            step = np.stack([d * x - b * y, a * y - c * x], axis=1) / determinant[:, None]
            far = np.abs(step).max(axis=1) / np.abs(missing).max(axis=1).clip(_PRECISION)
            moved -= step / (far / _STRIDE).clip(1)[:, None]
        what = "The deformation must not fold the image, so that each point has one new place."
        raise ConfigError(what, fix="decrease randrange, or increase sigma")

    def _sources(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return x and y of the point in the image that each pixel of the result shows."""
        x, y = np.arange(self.w) + 0.5, np.arange(self.h) + 0.5
        # Weights are products of a weight for x and a weight for y, which allows matrix products.
        along = self._weights(x[:, None] / self.w, self.anchors[:, :1])
        down = self._weights(y[:, None] / self.h, self.anchors[:, 1:])
        pulls_x, pulls_y = ((down * pulls) @ along.T for pulls in self.pulls.T)
        return x + pulls_x, y[:, None] + pulls_y

    def _weights(self, places: Points, anchors: Points) -> NDArray[np.float64]:
        away = places[:, None] - anchors
        return np.exp((away * away).sum(axis=-1) / (-2 * self.sigma**2))

    def _pull(self, points: Points) -> tuple[Points, NDArray[np.float64]]:
        """Return the displacements at points [n, 2], and their derivatives."""
        away = (points[:, None] / (self.w, self.h) - self.anchors) / (self.w, self.h)
        weights = self._weights(points / (self.w, self.h), self.anchors)
        slopes = weights[..., None] * away / -(self.sigma**2)
        return weights @ self.pulls, np.einsum("nkj,ki->nij", slopes, self.pulls)


@dataclass(eq=False, repr=False)
class GaussianDeform(ImageAugmentor):
    """Deform an image elastically by random displacements of some points.

    Args:
        anchors: Points (y, x) to displace, as fractions of height and width.
        shape: (height, width) that images must have (default: any).
        sigma: Standard deviation of the Gaussian weight of each displacement, as a fraction of
            height and width.
        randrange: Largest displacement in x and in y in pixels (default: an eighth of width and
            height). Coordinates raise an error if the deformation folds the image.
    """

    anchors: Sequence[tuple[float, float]]
    shape: tuple[int, int] | None = None
    sigma: Annotated[float, args.number(above=0)] = 0.5
    randrange: Annotated[float | None, args.number(0)] = None

    def get_transform(self, img: Image, rng: RNG | None = None) -> Transform:
        h, w = size_of(img)
        if self.shape is not None:
            check_size(img, self.shape[0], self.shape[1])
        reach = np.array((w / 8, h / 8) if self.randrange is None else (self.randrange,) * 2)
        pulls = self.generator(rng).uniform(-reach, reach, (len(self.anchors), 2))
        anchors = np.asarray(self.anchors, np.float64)[:, ::-1]
        return DeformTransform(h, w, anchors, pulls, self.sigma)


def rotation(degrees: float) -> Matrix:
    """Return the matrix [2, 2] of a rotation that looks counter-clockwise (y points down)."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return np.array([[cos, sin], [-sin, cos]])


def affine(
    linear: Matrix, center: tuple[float, float], shift: tuple[float, float] = (0.0, 0.0)
) -> Matrix:
    """Return the matrix [2, 3] that applies `linear` about a point (x, y) and then shifts."""
    fixed = np.array(center) - 0.5
    return np.column_stack([linear, fixed - linear @ fixed + shift])


def _draw_shift(size: tuple[int, int], fractions: tuple[float, float], rng: RNG) -> tuple[int, int]:
    # Add an epsilon, so that 0.29 of 100 is 29.
    limits = np.floor(np.array(fractions) * size[::-1] + 1e-9).astype(int)
    x, y = rng.integers(-limits, limits, endpoint=True).tolist()
    return x, y


def _draw_degrees(max_deg: float, step_deg: float | None, rng: RNG) -> float:
    if step_deg is None:
        return rng.uniform(-max_deg, max_deg)
    steps = math.floor(max_deg / step_deg + 1e-9)
    return float(rng.integers(-steps, steps + 1)) * step_deg


def _largest_rectangle(h: int, w: int, degrees: float) -> tuple[int, int]:
    """Return the (height, width) of the largest upright rectangle in a rotated rectangle."""
    sin, cos = abs(math.sin(math.radians(degrees))), abs(math.cos(math.radians(degrees)))
    short, long = min(h, w), max(h, w)
    if short <= 2 * sin * cos * long:
        # Two corners touch a long side. The others lie on the center line parallel to that side.
        first, second = short / 2 / max(sin, 1e-12), short / 2 / max(cos, 1e-12)
        new_w, new_h = (first, second) if w >= h else (second, first)
    else:
        double = cos * cos - sin * sin
        new_w, new_h = (w * cos - h * sin) / double, (h * cos - w * sin) / double
    return max(1, math.floor(new_h + 1e-6)), max(1, math.floor(new_w + 1e-6))


def _pick(mask: Image, numbers: NDArray[Any], value: Any) -> Image:
    picked = mask.reshape(-1, *mask.shape[2:])[numbers]
    outside = numbers < 0
    if outside.any():
        picked[outside] = pixel_values(value, mask)
    return picked
