"""Anchors: the default boxes of a detector in each cell of a feature map.

Liu et al. 2016, "SSD: Single Shot MultiBox Detector", section 2.2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray


@dataclass(frozen=True)
class AnchorLevel:
    """Anchors of one feature map, with lengths in pixels of the network's input.

    Attributes:
        stride: Distance between cells.
        least: Side of the smaller square anchor.
        greatest: Side of the smaller square of the next feature map. The side of the larger square
            anchor is the geometric mean of `least` and `greatest`.
        ratios: Ratios of width to height. Each adds an anchor of this ratio and one of its inverse.
    """

    stride: float
    least: float
    greatest: float
    ratios: Sequence[float] = (2, 3)

    @property
    def per_cell(self) -> int:
        """Number of anchors in a cell."""
        return 2 + 2 * len(self.ratios)

    def sides(self) -> NDArray[np.float64]:
        """Return width and height of the anchors of a cell, [per_cell, 2]."""
        middle = math.sqrt(self.least * self.greatest)
        stretched = [
            (self.least * s, self.least / s)
            for ratio in self.ratios
            for s in (math.sqrt(ratio), 1 / math.sqrt(ratio))
        ]
        return np.array([(self.least, self.least), (middle, middle), *stretched])

    def boxes(self, rows: int, columns: int, size: tuple[int, int]) -> NDArray[np.float32]:
        """Return boxes [rows * columns * per_cell, 4], ordered by row, column and side.

        Boxes are (x1, y1, x2, y2) as fractions of the input. Boxes at the edge lie partly outside.

        Args:
            rows, columns: Size of the feature map.
            size: Height and width of the input in pixels.
        """
        y, x = (np.mgrid[:rows, :columns] + 0.5) * self.stride
        centers = np.stack([x, y], axis=-1)[:, :, None]
        half = self.sides() / 2
        boxes = np.concatenate([centers - half, centers + half], axis=-1).reshape(-1, 4)
        return (boxes / np.tile(size[::-1], 2)).astype(np.float32)


def corner_anchors(
    rows: Any, columns: Any, size: tuple[Any, Any], side: float, ratios: Sequence[float]
) -> tf.Tensor:
    """Return anchors in pixels, float32 [rows * columns * len(ratios), 4], in this order.

    Ren et al. 2017, "Faster R-CNN", section 3.1.1. As in torchvision, anchors are centered on the
    top left corners of the cells, and half of each side is rounded to whole pixels.

    Args:
        rows, columns: Size of the feature map: numbers or scalar tensors.
        size: Height and width of the input in pixels, as for `rows`.
        side: Square root of the area of an anchor.
        ratios: Ratios of height to width.
    """
    stretch = np.sqrt(np.asarray(ratios, np.float32))
    width, height = np.round(side / stretch / 2), np.round(side * stretch / 2)
    y, x = tf.range(rows) * (size[0] // rows), tf.range(columns) * (size[1] // columns)
    corners = tf.cast(tf.stack(tf.meshgrid(x, y), axis=-1), tf.float32)
    around = np.stack([-width, -height, width, height], axis=-1).astype(np.float32)
    return tf.reshape(tf.tile(corners, [1, 1, 2])[:, :, None] + around, [-1, 4])
