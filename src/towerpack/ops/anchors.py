"""Anchors: the boxes that a detector starts from, in each cell of a feature map.

Liu et al. 2016, "SSD: Single Shot MultiBox Detector", section 2.2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class AnchorLevel:
    """The anchors of one feature map. Lengths are in pixels of the network's input.

    Attributes:
        stride: Distance of the cells.
        least: Side of the smaller square, from which the others are stretched.
        greatest: That of the next map; a second square is their geometric mean.
        ratios: Of width to height; each stands for its inverse, too.
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
        """Return (width, height) of the anchors of a cell, [per_cell, 2]."""
        middle = math.sqrt(self.least * self.greatest)
        stretched = [
            (self.least * s, self.least / s)
            for ratio in self.ratios
            for s in (math.sqrt(ratio), 1 / math.sqrt(ratio))
        ]
        return np.array([(self.least, self.least), (middle, middle), *stretched])

    def boxes(self, rows: int, columns: int, size: tuple[int, int]) -> NDArray[np.float32]:
        """Return boxes [rows * columns * per_cell, 4], by rows, then columns, then sides.

        Boxes are x1, y1, x2, y2 as shares of the input, which has `size` (height, width). Those at
        its edge lie partly outside.
        """
        y, x = (np.mgrid[:rows, :columns] + 0.5) * self.stride
        centres = np.stack([x, y], axis=-1)[:, :, None]
        half = self.sides() / 2
        boxes = np.concatenate([centres - half, centres + half], axis=-1).reshape(-1, 4)
        return (boxes / np.tile(size[::-1], 2)).astype(np.float32)
