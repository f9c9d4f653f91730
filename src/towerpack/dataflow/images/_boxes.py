"""Boxes after an augmentation: parts outside of the image are cut off."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from towerpack.dataflow.images._transform import as_floats


def clip_boxes(
    boxes: NDArray[Any], height: int, width: int, *, min_area: float = 0.0
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Cut off what lies outside of the image, and say which boxes to keep.

    Args:
        boxes: [n, 4]: x0, y0, x1, y1.
        height: Of the image.
        width: Of the image.
        min_area: A box is worth keeping if it has an area inside, and at least this fraction of
            its whole area.

    Returns:
        All boxes, clipped, and a mask [n] of those to keep: `boxes[keep], labels[keep]`.
    """
    boxes = as_floats(boxes, "boxes", 4)
    limits = np.array((width, height, width, height), boxes.dtype)
    clipped = np.clip(boxes, 0, limits)
    inside = _areas(clipped)
    return clipped, (inside > 0) & (inside >= min_area * _areas(boxes))


def _areas(boxes: NDArray[Any]) -> NDArray[np.float64]:
    """0 for boxes that end before they begin. In float64: float16 ends at 65504."""
    sides = np.maximum(boxes[:, 2:].astype(np.float64) - boxes[:, :2], 0)
    return sides[:, 0] * sides[:, 1]
