"""Pixels between pixels: resizing and warping of images, and of masks without mixing labels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from towerpack.dataflow.images._image import Image, channel_values, check_image, opencv

_AT_ONCE = 4  # channels that every kernel of OpenCV takes


def resize(img: Image, height: int, width: int, interp: int) -> Image:
    """An image scaled to another size."""
    resized: Image = opencv().resize(check_image(img), (width, height), interpolation=interp)
    return resized.reshape(height, width, *img.shape[2:])


def resize_mask(mask: Image, height: int, width: int) -> Image:
    """A mask scaled to another size: each pixel takes the label at its centre."""
    rows, columns = _centres(mask.shape[0], height), _centres(mask.shape[1], width)
    return mask[rows[:, None], columns]


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
    check_image(img)
    values = channel_values(value, img)
    flat = img.reshape(*img.shape[:2], len(values))
    parts = [
        opencv()
        .warpAffine(
            flat[..., first : first + _AT_ONCE],
            matrix,
            size[::-1],
            flags=interp,
            borderMode=border,
            borderValue=values[first : first + _AT_ONCE].tolist(),
        )
        .reshape(*size, -1)
        for first in range(0, len(values), _AT_ONCE)
    ]
    moved: Image = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=2)
    return moved.reshape(*size, *img.shape[2:])


def warp_mask(
    mask: Image, matrix: NDArray[np.float64], size: tuple[int, int], border: int, value: Any
) -> Image:
    """A mask moved by a matrix as in `warp_affine`: each pixel takes one label, or `value`."""
    return pick(mask, warp_affine_numbers(mask.shape[:2], matrix, size, border), value)


def warp_affine_numbers(
    shape: tuple[int, ...], matrix: NDArray[np.float64], size: tuple[int, int], border: int
) -> NDArray[np.int32]:
    """For each pixel of a warped image the number of the pixel that it shows; -1 is outside."""
    numbers = np.arange(shape[0] * shape[1], dtype=np.int32).reshape(shape[0], shape[1])
    warped: NDArray[np.int32] = opencv().warpAffine(
        numbers, matrix, size[::-1], flags=0, borderMode=border, borderValue=-1
    )
    return warped


def pick(mask: Image, numbers: NDArray[Any], value: Any) -> Image:
    """Look pixels up by number, so that masks may have any dtype; `value` for negative numbers."""
    flat = mask.reshape(-1, *mask.shape[2:])
    picked = flat[numbers]
    outside = numbers < 0
    if outside.any():
        picked[outside] = value
    return picked


def _centres(old: int, new: int) -> NDArray[np.int64]:
    # In integers: (i + 0.5) * old / new, rounded down.
    return (np.arange(new, dtype=np.int64) * 2 + 1) * old // (2 * new)
