"""Numbers for each class of pixels, and which are taken for which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from towerpack.apps._class_report import ClassificationReport
from towerpack.apps.segmentation._classes import VOID, Classes
from towerpack.callbacks import MeanIoU


class SegmentationReport(ClassificationReport):
    """Accuracy of the pixels, and intersection over union, mean and for each class.

    Over all pixels of all pictures at the size that the network sees, but for void ones. The mean
    leaves out classes that are neither there nor predicted; theirs is NaN.

    Args:
        classes: Names and void.
    """

    better = "max"

    def __init__(self, classes: Classes) -> None:
        super().__init__(classes.names, 1)
        self._matrix = MeanIoU(classes.names, ignore=VOID)

    def outputs(self) -> Sequence[str]:
        """Prediction and label."""
        return self._matrix.outputs()

    def names(self) -> Sequence[str]:
        """Accuracy, the mean, each class."""
        return ["pixel_accuracy", *self._matrix.names()]

    def update(self, outputs: Mapping[str, np.ndarray], batch_size: int) -> None:
        """Add a batch."""
        self._matrix.update(outputs, batch_size)

    def finish(self) -> Mapping[str, float]:
        """The shares."""
        right, pixels = int(np.trace(self.confusion)), int(self.confusion.sum())
        return {"pixel_accuracy": right / max(pixels, 1), **self._matrix.finish()}

    def _columns(self) -> Mapping[str, Any]:
        found = self.finish()
        return {**super()._columns(), "IoU": [found[f"iou/{name}"] for name in self._names]}
