"""Tables that map each of the 256 values of a uint8 image to another; as Pillow computes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towerpack.dataflow.images._image import Image, opencv

Table = NDArray[np.uint8]


def autocontrast(img: Image) -> Image:
    """Stretch every channel, so that its least value becomes 0 and its greatest 255."""
    return _by_histogram(img, _stretching)


def equalize(img: Image) -> Image:
    """Make all values of every channel about as frequent as each other."""
    return _by_histogram(img, _equalizing)


def posterize(img: Image, bits: int) -> Image:
    """Keep the highest bits of every value, 0 to 8 of them."""
    return img & np.uint8(256 - (1 << (8 - bits)) & 255)


def solarize(img: Image, threshold: float) -> Image:
    """Invert the values from a threshold on."""
    values = np.arange(256)
    return look_up(img, np.where(values < threshold, values, 255 - values).astype(np.uint8))


def look_up(img: Image, tables: Table) -> Image:
    """Replace every value by its entry in one table [256], or in that of its channel."""
    cv2 = opencv()
    table = tables.reshape(256, 1) if tables.ndim == 1 else tables
    found: Any = cv2.LUT(img, table.reshape(1, 256, -1))
    return found.reshape(img.shape)


def _by_histogram(img: Image, table_of: Callable[[NDArray[np.int64]], Table]) -> Image:
    cv2 = opencv()
    flat: Any = img.reshape(*img.shape[:2], -1)
    histograms: list[Any] = [
        cv2.calcHist([flat], [channel], None, [256], [0, 256]) for channel in range(flat.shape[2])
    ]
    # OpenCV counts in float32, which is exact up to 2**24 pixels of one value.
    tables = [table_of(h.ravel().astype(np.int64)) for h in histograms]
    return look_up(img, np.stack(tables, axis=1))


def _stretching(histogram: NDArray[np.int64]) -> Table:
    occurring = np.flatnonzero(histogram)
    low, high = int(occurring[0]), int(occurring[-1])
    values = np.arange(256)
    if high == low:
        return values.astype(np.uint8)
    scale = 255 / (high - low)
    # In this order, as Pillow: it cuts fractions off, so that how they are rounded is seen.
    return np.clip(values * scale - low * scale, 0, 255).astype(np.uint8)


def _equalizing(histogram: NDArray[np.int64]) -> Table:
    occurring = np.flatnonzero(histogram)
    step = (int(histogram.sum()) - int(histogram[occurring[-1]])) // 255
    if step == 0:
        return np.arange(256, dtype=np.uint8)
    before = np.concatenate([[0], np.cumsum(histogram)[:-1]])
    return np.minimum((step // 2 + before) // step, 255).astype(np.uint8)
