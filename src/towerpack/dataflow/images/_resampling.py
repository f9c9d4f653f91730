"""Pixels between pixels: resizing and warping of images, and of masks without mixing labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError
from towerpack.dataflow.images._arguments import INTERPOLATIONS
from towerpack.dataflow.images._image import Image, check_image, opencv, pixel_values

_AT_ONCE = 4  # channels that every kernel of OpenCV takes
_LONGEST = 32766  # pixels along a side that its warps take


def resize(img: Image, height: int, width: int, interp: int) -> Image:
    """An image scaled to another size; "nearest" takes the same pixels as `resize_mask`."""
    if interp == INTERPOLATIONS["nearest"]:
        # Not by OpenCV, which takes the pixel at a corner, and not the one at the centre.
        return resize_mask(check_image(img), height, width)
    cv2 = opencv()
    return in_parts(
        check_image(img), lambda part, _: cv2.resize(part, (width, height), interpolation=interp)
    )


def resize_mask(mask: Image, height: int, width: int) -> Image:
    """A mask scaled to another size: each pixel takes the label at its centre."""
    rows, columns = (
        # In integers: (i + 0.5) * old / new, rounded down.
        (np.arange(new, dtype=np.int64) * 2 + 1) * old // (2 * new)
        for old, new in zip(mask.shape, (height, width), strict=False)
    )
    # One axis after the other: both at once take five times as long.
    return mask.take(rows, axis=0).take(columns, axis=1)


def warp_affine(
    img: Image,
    matrix: NDArray[np.float64],
    dsize: tuple[int, int],
    interp: int,
    border: int,
    value: Any,
) -> Image:
    """An image moved by a matrix [2, 3] in pixel indices (x, y), to a size (width, height)."""
    cv2 = opencv()
    check_sides(check_image(img).shape[:2], dsize)
    values = np.atleast_1d(pixel_values(value, img))
    return in_parts(
        img,
        lambda part, channels: cv2.warpAffine(
            part,
            matrix,
            dsize,
            flags=interp,
            borderMode=border,
            borderValue=values[channels].tolist(),
        ),
    )


def warp_mask(
    mask: Image, matrix: NDArray[np.float64], dsize: tuple[int, int], border: int, value: Any
) -> Image:
    """A mask moved by a matrix as in `warp_affine`: each pixel takes one label, or `value`."""
    check_sides(mask.shape[:2], dsize)
    # Which pixel is shown is asked by their numbers, so that labels may be of any dtype.
    numbers = np.arange(mask.shape[0] * mask.shape[1], dtype=np.int32).reshape(mask.shape[:2])
    warped = opencv().warpAffine(numbers, matrix, dsize, flags=0, borderMode=border, borderValue=-1)
    return pick(mask, warped, value)


def pick(mask: Image, numbers: NDArray[Any], value: Any) -> Image:
    """Pixels of a mask by their numbers; `value` for negative ones."""
    picked = mask.reshape(-1, *mask.shape[2:])[numbers]
    outside = numbers < 0
    if outside.any():
        picked[outside] = pixel_values(value, mask)
    return picked


def in_parts(img: Image, f: Callable[[Image, slice], Image]) -> Image:
    """Apply a function of OpenCV to four channels at a time, of which it is told which they are."""
    if img.ndim == 2 or img.shape[2] <= _AT_ONCE:
        done = f(img, slice(None))
        return done.reshape(*done.shape[:2], *img.shape[2:])
    parts = [slice(first, first + _AT_ONCE) for first in range(0, img.shape[2], _AT_ONCE)]
    return np.dstack([f(img[..., part], part) for part in parts])


def check_sides(*sizes: tuple[int, ...]) -> None:
    """Raise `ConfigError` for sizes that OpenCV cannot warp."""
    largest = max(sizes, key=max)
    if max(largest) > _LONGEST:
        raise ConfigError(
            f"{' x '.join(map(str, largest))} pixels cannot be warped.",
            expected=f"at most {_LONGEST} pixels a side",
            fix="crop or resize it before",
        )
