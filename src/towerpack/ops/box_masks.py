"""Masks of objects as arrays of fixed size inside their boxes, and their position in the image.

Coordinates are continuous: the first pixel of an image is the square from (0, 0) to (1, 1).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil, floor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towerpack._core.extras import require


def crop_masks(masks: Iterable[NDArray[Any]], boxes: NDArray[Any], side: int) -> NDArray[np.uint8]:
    """Resample masks of an image to the insides of their boxes, uint8 [n, side, side] (0 or 255).

    A mask that covers no sampled point, such as that of a tiny object, fills its box.

    Args:
        masks: n masks [height, width] of the image; pixels above 0 belong to the object.
        boxes: [n, 4] boxes (x1, y1, x2, y2) in pixels, with an area.
        side: Height and width of the results.
    """
    cropped = np.zeros((len(boxes), side, side), np.uint8)
    for number, (mask, box) in enumerate(zip(masks, boxes, strict=True)):
        values = _sample((mask > 0).astype(np.float32), box, (side, side))
        cropped[number] = np.where((values >= 0.5) | (values.max() < 0.5), 255, 0)
    return cropped


def paste_mask(
    mask: NDArray[Any], box: Sequence[float] | NDArray[Any], size: tuple[int, int]
) -> NDArray[np.bool_]:
    """Return the pixels of an image that a mask inside a box covers with at least 0.5.

    Args:
        mask: float [h, w] from 0 to 1, or uint8 from 0 to 255: the mask inside of the box.
        box: x1, y1, x2, y2 in pixels. A box without area covers nothing.
        size: Height and width of the image.
    """
    x1, y1, x2, y2 = map(float, box)
    left, top = max(0, floor(x1)), max(0, floor(y1))
    right, bottom = min(size[1], ceil(x2)), min(size[0], ceil(y2))
    canvas = np.zeros(size, np.bool_)
    if left < right and top < bottom and x1 < x2 and y1 < y2:
        scale = np.float32(255 if mask.dtype == np.uint8 else 1)
        values = mask.astype(np.float32) / scale
        across, down = mask.shape[1] / (x2 - x1), mask.shape[0] / (y2 - y1)
        start, end = ((x - x1) * across for x in (left, right))
        part = start, (top - y1) * down, end, (bottom - y1) * down
        covered = _sample(values, part, (bottom - top, right - left)) >= 0.5
        canvas[top:bottom, left:right] = covered
    return canvas


def _sample(
    image: NDArray[Any], box: Sequence[float] | NDArray[Any], size: tuple[int, int]
) -> NDArray[np.float32]:
    """Sample an image at the cell centers of a grid over a box, bilinearly, with 0 outside."""
    cv2: Any = require("cv2", extra="image", needed_for="Masks")
    x1, y1, x2, y2 = map(float, box)
    dx, dy = (x2 - x1) / size[1], (y2 - y1) / size[0]
    matrix = np.array([[dx, 0, x1 + (dx - 1) / 2], [0, dy, y1 + (dy - 1) / 2]])
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    return cv2.warpAffine(image, matrix, size[::-1], flags=flags, borderValue=0)
