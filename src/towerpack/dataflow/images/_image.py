"""What an image is here, and OpenCV, loaded when it is first needed.

An image is an array [height, width] or [height, width, channels], uint8 (0 to 255) or float32 (0 to
1, or 0 to 255).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError
from towerpack._core.extras import require
from towerpack.dataflow._datapoints import describe

Image = NDArray[Any]

Interpolation = int | str
"""A constant of OpenCV (`cv2.INTER_LINEAR`), or its name in lower case (`"linear"`)."""

INTERPOLATIONS = {"nearest": 0, "linear": 1, "cubic": 2, "area": 3, "lanczos": 4}
BORDERS = {"constant": 0, "replicate": 1, "reflect": 2, "wrap": 3, "reflect_101": 4}

MOST_CHANNELS = 128  # that functions of OpenCV 5 take at once, where they take any number

_WHOLE = (int, np.integer)
_TRANSPOSABLE = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32}  # bytes of a pixel that OpenCV can move


def opencv() -> Any:
    """The module `cv2`.

    Raises:
        MissingExtraError: It is not installed.
    """
    return require("cv2", extra="image", needed_for="towerpack.dataflow.images")


def check_image(img: Any) -> Image:
    """Refuse what is no image.

    Raises:
        ConfigError: The kind, dtype or number of axes is wrong, or there is no pixel.
    """
    if not isinstance(img, np.ndarray):
        raise ConfigError(
            f"An image is a NumPy array, not of type {type(img).__name__}.",
            fix="decode it first; np.asarray(img) if it is an array of another library",
        )
    image = cast("Image", img)
    if image.dtype != np.uint8 and image.dtype != np.float32:
        raise ConfigError(
            f"Images of dtype {image.dtype} are not supported.",
            got=describe(image),
            expected="uint8, or float32",
            fix='img.astype("float32"); label maps are masks, see apply_mask',
        )
    if image.ndim not in (2, 3) or image.size == 0:
        raise ConfigError(
            f"The shape {list(image.shape)} is not that of an image.",
            expected="[height, width] or [height, width, channels], with at least one pixel",
        )
    return image


def mirrored(img: Image, code: int, out: Image | None = None) -> Image:
    """Left and right swapped (`code` 1), top and bottom (0), or both (-1).

    By OpenCV: copying a view with negative strides takes NumPy ten times as long.

    Args:
        img: An image.
        code: OpenCV's, as above.
        out: Where to write it.
    """
    if img.ndim == 3 and img.shape[2] > MOST_CHANNELS:
        view = img[:: -1 if code < 1 else 1, :: -1 if code else 1]
        if out is None:
            return np.ascontiguousarray(view)
        np.copyto(out, view)
        return out
    return opencv().flip(img, code, dst=out).reshape(img.shape)


def transposed(img: Image) -> Image:
    """X and y swapped; by OpenCV, too."""
    shape = (img.shape[1], img.shape[0], *img.shape[2:])
    if img.itemsize * math.prod(img.shape[2:]) not in _TRANSPOSABLE:
        return np.ascontiguousarray(img.swapaxes(0, 1))
    return opencv().transpose(img).reshape(shape)


def size_of(img: Any) -> tuple[int, int]:
    """Height and width of an image or mask.

    Raises:
        ConfigError: It is neither.
    """
    if not isinstance(img, np.ndarray):
        raise ConfigError(
            f"An image or mask is a NumPy array, not of type {type(img).__name__}.",
            fix="np.asarray(it)",
        )
    shape = cast("Image", img).shape
    if len(shape) not in (2, 3) or 0 in shape:
        raise ConfigError(
            f"The shape {list(shape)} is not that of an image or mask.",
            expected="[height, width] or [height, width, channels], with at least one pixel",
        )
    return shape[0], shape[1]


def height_and_width(shape: int | Sequence[int], of: str) -> tuple[int, int]:
    """An argument that is a (height, width), or one number for both.

    Raises:
        ConfigError: It is neither.
    """
    several: Any = (shape, shape) if isinstance(shape, _WHOLE) else shape
    is_pair = isinstance(several, (tuple, list)) and len(cast("list[Any]", several)) == 2
    pair = cast("list[Any]", several) if is_pair else [0]
    if not all(isinstance(n, _WHOLE) for n in pair) or min(pair) < 1:
        raise ConfigError(
            f"{shape!r} is no {of}.", expected="(height, width), or one number for both; 1 or more"
        )
    return int(pair[0]), int(pair[1])


def pixel_values(value: Any, img: Image) -> NDArray[np.float64]:
    """`channel_values`, shaped like one pixel of the image."""
    return channel_values(value, img).reshape(img.shape[2:])


def channel_values(value: Any, img: Image) -> NDArray[np.float64]:
    """A colour for an image, or a label for a mask: one number, or one for each channel.

    Returns:
        The numbers for all channels.

    Raises:
        ConfigError: There are not as many as there are channels, or one is out of range.
    """
    channels = 1 if img.ndim == 2 else img.shape[2]
    values = np.atleast_1d(np.asarray(value, np.float64))
    if values.shape not in ((1,), (channels,)):
        raise ConfigError(
            f"{value!r:.60} is no colour for an image of shape {list(img.shape)}.",
            expected=f"one number, or {channels}",
        )
    if img.dtype.kind in "iu":
        info = np.iinfo(img.dtype)
        if values.min() < info.min or values.max() > info.max:
            raise ConfigError(
                f"{value!r:.60} does not fit into {img.dtype}.",
                expected=f"{info.min} to {info.max}",
            )
    return np.resize(values, channels)


def interpolation(interp: Interpolation) -> int:
    """OpenCV's number of a way to interpolate.

    Raises:
        ConfigError: There is none of that name.
    """
    return _constant(interp, INTERPOLATIONS, "interpolation")


def border_mode(border: int | str) -> int:
    """OpenCV's number of what lies around an image.

    Raises:
        ConfigError: There is none of that name.
    """
    return _constant(border, BORDERS, "border")


def _constant(value: int | str, names: dict[str, int], what: str) -> int:
    if value in names.values():
        return int(value)
    if value not in names:
        raise ConfigError(
            f"There is no {what} {value!r}.",
            expected=f"one of {', '.join(map(repr, names))}, or OpenCV's constant for it",
        )
    return names[str(value)]
