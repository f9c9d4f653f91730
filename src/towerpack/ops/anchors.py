"""Anchors: the default boxes of a detector in each cell of a feature map.

Liu et al. 2016, "SSD: Single Shot MultiBox Detector", section 2.2.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
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
