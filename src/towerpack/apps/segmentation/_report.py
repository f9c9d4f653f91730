"""Evaluation of segmentation: metrics for each class of pixels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from towerpack.apps._class_report import ClassificationReport
from towerpack.apps.segmentation._classes import VOID, Classes
from towerpack.callbacks import MeanIoU


class SegmentationReport(ClassificationReport):
    """Accuracy of the pixels, and intersection over union (IoU), as a mean and for each class.

    All pixels of all pictures count except void ones, at the size of the network's input. The IoU
    of a class that is neither labeled nor predicted is NaN, and the mean skips it.

    Args:
        classes: Classes of the data.
    """

    better = "max"

    def __init__(self, classes: Classes) -> None:
        super().__init__(classes.names, 1)
        self._matrix = MeanIoU(classes.names, ignore=VOID)

    def outputs(self) -> Sequence[str]:
        return self._matrix.outputs()

    def names(self) -> Sequence[str]:
        return ["pixel_accuracy", *self._matrix.names()]

    def update(self, outputs: Mapping[str, np.ndarray], batch_size: int) -> None:
        self._matrix.update(outputs, batch_size)

    def finish(self) -> Mapping[str, float]:
        right, pixels = int(np.trace(self.confusion)), int(self.confusion.sum())
        return {"pixel_accuracy": right / max(pixels, 1), **self._matrix.finish()}

    def _columns(self) -> Mapping[str, Any]:
        metrics = self.finish()
        return {**super()._columns(), "IoU": [metrics[f"iou/{name}"] for name in self._names]}
