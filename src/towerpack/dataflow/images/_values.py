"""Arithmetic on pixels that keeps their dtype: rounded and clipped for uint8, never wrapped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError
from towerpack.dataflow._datapoints import describe
from towerpack.dataflow.images._image import MOST_CHANNELS, Image, opencv

Floats = NDArray[np.float32]

_LEVELS = np.arange(256, dtype=np.float32)[:, None]
_LEVELS.flags.writeable = False


def map_values(img: Image, f: Callable[[Floats], NDArray[Any]], limit: float | None) -> Image:
    """Apply a function of single values; uint8 images are looked up in a table of 256.

    Args:
        img: An image.
        f: Elementwise along all axes but the last, which has one entry for each channel (or one).
        limit: Float images are clipped to 0..limit; `None` lets them be.
    """
    if img.dtype == np.uint8:
        return _look_up(img, to_uint8(f(_LEVELS)))
    mapped = f(img.reshape(*img.shape[:2], -1)).astype(np.float32, copy=False)
    if limit is not None:
        mapped = np.clip(mapped, 0, limit)
    return mapped.reshape(img.shape)


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


def channel_means(img: Image) -> Floats:
    """The mean of each channel, of shape [channels]."""
    # Rows first: along both axes at once NumPy takes ten times as long.
    means = img.mean(axis=0, dtype=np.float64).mean(axis=0)
    return means.reshape(-1).astype(np.float32)


def check_color(img: Image, who: object) -> None:
    """Refuse an image without three channels.

    Raises:
        ConfigError: It has fewer, or more.
    """
    if img.ndim != 3 or img.shape[2] != 3:
        raise ConfigError(
            f"{who!r} is for images of three colours.",
            got=describe(img),
            expected="[height, width, 3]",
        )


def _look_up(img: Image, table: NDArray[np.uint8]) -> Image:
    if img.ndim == 3 and img.shape[2] > MOST_CHANNELS:
        return table[img, np.arange(table.shape[1])]
    found: Image = opencv().LUT(img, table.reshape(1, 256, -1))
    return found.reshape(img.shape)
