"""What an image is here, its size, arithmetic on its pixels, and OpenCV, loaded when first needed.

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

MOST_CHANNELS = 128  # that functions of OpenCV 5 take at once, where they take any number


_AT_ONCE = 4  # channels that every kernel of OpenCV takes
_LEVELS = np.arange(256, dtype=np.float32)[:, None]


def opencv() -> Any:
    """The module `cv2`, or a `MissingExtraError`."""
    return require("cv2", extra="image", needed_for="towerpack.dataflow.images")


def size_of(img: Any) -> tuple[int, int]:
    """Height and width of an image or mask, or a `ConfigError`."""
    if not isinstance(img, np.ndarray):
        what = f"An image or mask is a NumPy array, not of type {type(img).__name__}."
        fix = "decode it first; np.asarray(it) if it is an array of another library"
        raise ConfigError(what, fix=fix)
    shape = cast("Image", img).shape
    if len(shape) not in (2, 3) or 0 in shape:
        what = f"The shape {list(shape)} is not that of an image or mask."
        expected = "[height, width] or [height, width, channels], with at least one pixel"
        raise ConfigError(what, expected=expected)
    return shape[0], shape[1]


def check_image(img: Any) -> Image:
    """Raise `ConfigError` for what is no image."""
    size_of(img)
    if img.dtype != np.uint8 and img.dtype != np.float32:
        what = f"Images of dtype {img.dtype} are not supported."
        fix = 'img.astype("float32"); label maps are masks, see apply_mask'
        raise ConfigError(what, got=describe(img), expected="uint8, or float32", fix=fix)
    return img


def check_size(img: Any, h: int, w: int) -> None:
    """Raise `ConfigError` for an image or mask that a transform was not drawn for."""
    found = size_of(img)
    if found != (h, w):
        what = f"The transform is for images of {h} x {w} pixels."
        raise ConfigError(what, got=f"{found[0]} x {found[1]}")


def mirrored(img: Image, code: int, out: Image | None = None) -> Image:
    """Left and right swapped (`code` 1), top and bottom (0) or both (-1), in `out` if given."""
    # By OpenCV: to copy a view that runs backwards takes NumPy ten times as long.
    if img.ndim == 3 and img.shape[2] > MOST_CHANNELS:
        out = np.empty_like(img) if out is None else out
        np.copyto(out, img[:: -1 if code < 1 else 1, :: -1 if code else 1])
        return out
    return opencv().flip(img, code, dst=out).reshape(img.shape)


def transposed(img: Image) -> Image:
    """X and y swapped; by OpenCV, too."""
    return in_parts(img, lambda part, _: opencv().transpose(part))


def upright(img: Image, orientation: int) -> Image:
    """The image, turned as EXIF's orientation (1 to 8) says."""
    img = transposed(img) if orientation > 4 else img
    if orientation in (2, 3, 6, 7):
        return mirrored(img, -1 if orientation in (3, 7) else 1)
    return mirrored(img, 0) if orientation in (4, 8) else img


def resize(img: Image, height: int, width: int, interp: int | str) -> Image:
    """Scale an image. "nearest" takes the same pixels as `resize_mask`.

    `cv2.INTER_NEAREST` takes the pixel at the corner of each new pixel, not at its center.
    """
    check_image(img)
    if interp == "nearest":
        return resize_mask(img, height, width)
    cv2, constant = opencv(), interpolation(interp)
    return in_parts(img, lambda part, _: cv2.resize(part, (width, height), interpolation=constant))


def resize_mask(mask: Image, height: int, width: int) -> Image:
    """A mask scaled to another size: each pixel takes the label at its centre."""
    rows, columns = (
        # In integers: (i + 0.5) * old / new, rounded down.
        (np.arange(new, dtype=np.int64) * 2 + 1) * old // (2 * new)
        for old, new in zip(mask.shape, (height, width), strict=False)
    )
    # One axis after the other: both at once take five times as long.
    return mask.take(rows, axis=0).take(columns, axis=1)


def in_parts(img: Image, f: Callable[[Image, slice], Image]) -> Image:
    """Apply a function of OpenCV to four channels at a time, of which it is told which they are."""
    if img.ndim == 2 or img.shape[2] <= _AT_ONCE:
        done = f(img, slice(None))
        return done.reshape(*done.shape[:2], *img.shape[2:])
    parts = [slice(first, first + _AT_ONCE) for first in range(0, img.shape[2], _AT_ONCE)]
    return np.dstack([f(img[..., part], part) for part in parts])


def pixel_values(value: Any, img: Image) -> NDArray[np.float64]:
    """A colour or label (one number, or one for each channel), shaped like one pixel of `img`."""
    channels = math.prod(img.shape[2:])
    values = np.atleast_1d(np.asarray(value, np.float64))
    if values.shape not in ((1,), (channels,)):
        what = f"{value!r:.60} is no colour for an image of shape {list(img.shape)}."
        raise ConfigError(what, expected=f"one number, or {channels}")
    if img.dtype.kind in "iu":
        info = np.iinfo(img.dtype)
        if values.min() < info.min or values.max() > info.max:
            what = f"{value!r:.60} does not fit into {img.dtype}."
            raise ConfigError(what, expected=f"{info.min} to {info.max}")
    return np.resize(values, channels).reshape(img.shape[2:])


# Arithmetic that keeps the dtype: rounded and clipped for uint8, never wrapped


def map_values(img: Image, f: Callable[[Floats], NDArray[Any]], limit: float | None) -> Image:
    """Apply a function of values [..., channels or 1], for uint8 by a table; else as `like`."""
    if img.dtype == np.uint8:
        return look_up(img, to_uint8(f(_LEVELS)))
    return like(f(img.reshape(*img.shape[:2], -1)).astype(np.float32, copy=False), img, limit)


def look_up(img: Image, table: NDArray[np.uint8]) -> Image:
    """Replace every value of a uint8 image by its entry in a table [256, channels or 1]."""
    if img.ndim == 3 and img.shape[2] > MOST_CHANNELS:
        return table[img, np.arange(table.shape[1])]
    return opencv().LUT(img, table.reshape(1, 256, -1)).reshape(img.shape)


def like(values: NDArray[Any], img: Image, limit: float | None) -> Image:
    """Values computed from `img`, in its dtype and shape; float images clipped to 0..limit."""
    if img.dtype == np.uint8:
        return to_uint8(values).reshape(img.shape)
    values = values if limit is None else np.clip(values, 0, limit)
    return values.astype(np.float32, copy=False).reshape(img.shape)


def to_uint8(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Rounded, and clipped to 0..255."""
    if values.dtype == np.uint8:
        return values
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)
