"""Pixels between pixels: resizing and warping of images, and of masks without mixing labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError
from towerpack.dataflow.images._image import (
    INTERPOLATIONS,
    Image,
    channel_values,
    check_image,
    opencv,
)

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
    rows, columns = _centres(mask.shape[0], height), _centres(mask.shape[1], width)
    # One axis after the other: both at once take five times as long.
    return mask.take(rows, axis=0).take(columns, axis=1)


def warp_affine(
    img: Image,
    matrix: NDArray[np.float64],
    size: tuple[int, int],
    interp: int,
    border: int,
    value: Any,
) -> Image:
    """An image moved by a matrix in pixel indices, as OpenCV has them.

    Args:
        img: What to move.
        matrix: [2, 3], from pixel indices (x, y) of `img` to those of the result.
        size: Height and width of the result.
        interp: OpenCV's constant.
        border: OpenCV's constant for what lies outside.
        value: For a constant border: one number, or one for each channel.
    """
    cv2 = opencv()
    check_sides(check_image(img).shape[:2], size)
    values = channel_values(value, img)
    return in_parts(
        img,
        lambda part, channels: cv2.warpAffine(
            part,
            matrix,
            size[::-1],
            flags=interp,
            borderMode=border,
            borderValue=values[channels].tolist(),
        ),
    )


def warp_mask(
    mask: Image, matrix: NDArray[np.float64], size: tuple[int, int], border: int, value: Any
) -> Image:
    """A mask moved by a matrix as in `warp_affine`: each pixel takes one label, or `value`."""
    return pick(mask, warp_affine_numbers(mask.shape[:2], matrix, size, border), value)


def warp_affine_numbers(
    shape: tuple[int, ...], matrix: NDArray[np.float64], size: tuple[int, int], border: int
) -> NDArray[np.int32]:
    """For each pixel of a warped image the number of the pixel that it shows; -1 is outside."""
    check_sides(shape, size)
    numbers = np.arange(shape[0] * shape[1], dtype=np.int32).reshape(shape[0], shape[1])
    warped: NDArray[np.int32] = opencv().warpAffine(
        numbers, matrix, size[::-1], flags=0, borderMode=border, borderValue=-1
    )
    return warped


def in_parts(img: Image, f: Callable[[Image, slice], Image]) -> Image:
    """Apply a function of OpenCV that takes at most four channels, and keep the number of axes.

    Args:
        img: An image.
        f: From an image of up to four channels, and which ones these are.
    """
    if img.ndim == 2 or img.shape[2] <= _AT_ONCE:
        done = f(img, slice(None))
        return done.reshape(*done.shape[:2], *img.shape[2:])
    firsts = range(0, img.shape[2], _AT_ONCE)
    parts = [slice(first, first + _AT_ONCE) for first in firsts]
    return np.dstack([f(img[..., part], part) for part in parts])


def check_sides(*sizes: tuple[int, ...]) -> None:
    """Refuse sizes that OpenCV cannot warp.

    Raises:
        ConfigError: A side is too long.
    """
    largest = max(sizes, key=max)
    if max(largest) > _LONGEST:
        raise ConfigError(
            f"{' x '.join(map(str, largest))} pixels cannot be warped.",
            expected=f"at most {_LONGEST} pixels a side",
            fix="crop or resize it before",
        )


def pick(mask: Image, numbers: NDArray[Any], value: Any) -> Image:
    """Look pixels up by number, so that masks may have any dtype; `value` for negative numbers."""
    flat = mask.reshape(-1, *mask.shape[2:])
    picked = flat[numbers]
    outside = numbers < 0
    if outside.any():
        picked[outside] = channel_values(value, mask)
    return picked


def _centres(old: int, new: int) -> NDArray[np.int64]:
    # In integers: (i + 0.5) * old / new, rounded down.
    return (np.arange(new, dtype=np.int64) * 2 + 1) * old // (2 * new)
