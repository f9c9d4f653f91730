"""Basic operations on images: checks, resizing, flips, and arithmetic that keeps the dtype.

An image is an array [height, width] or [height, width, channels], uint8 (0 to 255) or float32 (0 to
1, or 0 to 255).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError
from towerpack._core.extras import require
from towerpack.dataflow.datapoints import describe
from towerpack.dataflow.images._arguments import interpolation

Image = NDArray[Any]
Floats = NDArray[np.float32]
Points = NDArray[np.float64]

MOST_CHANNELS = 128  # limit of functions of OpenCV 5
_AT_ONCE = 4  # channels that every function of OpenCV supports
_LEVELS = np.arange(256, dtype=np.float32)[:, None]


def opencv() -> Any:
    """Import and return `cv2`, or raise `MissingExtraError`."""
    return require("cv2", extra="image", needed_for="towerpack.dataflow.images")


def size_of(img: Any) -> tuple[int, int]:
    """Return (height, width) of an image or mask, or raise `ConfigError`."""
    if not isinstance(img, np.ndarray):
        what = f"An image or mask must be a NumPy array, got {type(img).__name__}."
        fix = "decode the file first, or convert the array with np.asarray"
        raise ConfigError(what, fix=fix)
    shape = cast("Image", img).shape
    if len(shape) not in (2, 3) or 0 in shape:
        rule = "must be [height, width] or [height, width, channels] with at least one pixel"
        raise ConfigError(f"The shape of an image or mask {rule}, got {list(shape)}.")
    return shape[0], shape[1]


def check_image(img: Any) -> Image:
    """Return the argument. Raise `ConfigError` if it is not an image."""
    size_of(img)
    if img.dtype != np.uint8 and img.dtype != np.float32:
        what = f"The dtype of an image must be uint8 or float32, got {img.dtype}."
        fix = 'convert the image with img.astype("float32"), or pass label maps as masks'
        raise ConfigError(what, got=describe(img), fix=fix)
    return img


def check_size(img: Any, h: int, w: int) -> None:
    """Raise `ConfigError` if an image or mask does not have `h` by `w` pixels."""
    height, width = size_of(img)
    if (height, width) != (h, w):
        what = f"This transform needs an image of {h} x {w} pixels, for which it was drawn."
        fix = "draw a new transform with get_transform(img)"
        raise ConfigError(what, got=f"{height} x {width}", fix=fix)


def mirrored(img: Image, code: int, out: Image | None = None) -> Image:
    """Flip left and right (`code` 1), top and bottom (0) or both (-1), optionally into `out`."""
    # OpenCV is ten times as fast as NumPy's copy of a reversed view.
    if img.ndim == 3 and img.shape[2] > MOST_CHANNELS:
        out = np.empty_like(img) if out is None else out
        np.copyto(out, img[:: -1 if code < 1 else 1, :: -1 if code else 1])
        return out
    return opencv().flip(img, code, dst=out).reshape(img.shape)


def transposed(img: Image) -> Image:
    """Swap rows and columns."""
    return in_parts(img, lambda part, _: opencv().transpose(part))


def upright(img: Image, orientation: int) -> Image:
    """Rotate and flip an image by its EXIF orientation (1 to 8)."""
    img = transposed(img) if orientation > 4 else img
    if orientation in (2, 3, 6, 7):
        return mirrored(img, -1 if orientation in (3, 7) else 1)
    return mirrored(img, 0) if orientation in (4, 8) else img


def resize(img: Image, height: int, width: int, interp: int | str) -> Image:
    """Resize an image. "nearest" uses the centers of pixels, unlike `cv2.INTER_NEAREST`."""
    check_image(img)
    if interp == "nearest":
        return resize_mask(img, height, width)
    cv2, constant = opencv(), interpolation(interp)
    return in_parts(img, lambda part, _: cv2.resize(part, (width, height), interpolation=constant))


def resize_mask(mask: Image, height: int, width: int) -> Image:
    """Resize a mask. Each new pixel gets the label at its center."""
    rows, columns = (
        # (i + 0.5) * old / new, rounded down, in integers
        (np.arange(new, dtype=np.int64) * 2 + 1) * old // (2 * new)
        for old, new in zip(mask.shape, (height, width), strict=False)
    )
    # Indexing both axes at once takes five times as long.
    return mask.take(rows, axis=0).take(columns, axis=1)


def in_parts(img: Image, f: Callable[[Image, slice], Image]) -> Image:
    """Apply `f(part, channels)`, a function of OpenCV, to four channels at a time."""
    if img.ndim == 2 or img.shape[2] <= _AT_ONCE:
        result = f(img, slice(None))
        return result.reshape(*result.shape[:2], *img.shape[2:])
    parts = [slice(first, first + _AT_ONCE) for first in range(0, img.shape[2], _AT_ONCE)]
    return np.dstack([f(img[..., part], part) for part in parts])


def pixel_values(value: Any, img: Image) -> NDArray[np.float64]:
    """Convert a color or label (one number, or one per channel) to the shape of a pixel."""
    channels = math.prod(img.shape[2:])
    values = np.atleast_1d(np.asarray(value, np.float64))
    if values.shape not in ((1,), (channels,)):
        what = f"The color {value!r:.60} does not fit an image of shape {list(img.shape)}."
        raise ConfigError(what, expected=f"one number, or {channels} numbers")
    if img.dtype.kind in "iu":
        info = np.iinfo(img.dtype)
        if values.min() < info.min or values.max() > info.max:
            what = f"The color {value!r:.60} is out of range for {img.dtype}."
            raise ConfigError(what, expected=f"{info.min} to {info.max}")
    return np.resize(values, channels).reshape(img.shape[2:])


# Arithmetic that keeps the dtype. Values are rounded and clipped for uint8.


def map_values(img: Image, f: Callable[[Floats], NDArray[Any]], limit: float | None) -> Image:
    """Apply a function to the values of an image; by a lookup table if the image is uint8."""
    if img.dtype == np.uint8:
        return look_up(img, to_uint8(f(_LEVELS)))
    return like(f(img.reshape(*img.shape[:2], -1)).astype(np.float32, copy=False), img, limit)


def look_up(img: Image, table: NDArray[np.uint8]) -> Image:
    """Replace each value of a uint8 image by its entry in a table [256, channels or 1]."""
    if img.ndim == 3 and img.shape[2] > MOST_CHANNELS:
        return table[img, np.arange(table.shape[1])]
    return opencv().LUT(img, table.reshape(1, 256, -1)).reshape(img.shape)


def like(values: NDArray[Any], img: Image, limit: float | None) -> Image:
    """Convert values to the dtype and shape of `img`. Float images are clipped to 0..limit."""
    if img.dtype == np.uint8:
        return to_uint8(values).reshape(img.shape)
    values = values if limit is None else np.clip(values, 0, limit)
    return values.astype(np.float32, copy=False).reshape(img.shape)


def to_uint8(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Round values and clip them to 0..255."""
    if values.dtype == np.uint8:
        return values
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)
