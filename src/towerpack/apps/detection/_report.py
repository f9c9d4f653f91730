"""Evaluation of detection: average precision overall and for each class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from towerpack._core.columns import aligned
from towerpack._core.files import csv_of, replace_file
from towerpack.apps._modeler import Reporting
from towerpack.callbacks import DetectionAP


class DetectionReport(DetectionAP, Reporting):
    """COCO's twelve metrics over all pictures, and the average precision of each class.

    Args:
        class_names: Names of the classes in the order of their labels.
    """

    def __init__(self, class_names: Sequence[str]) -> None:
        self._names = list(class_names)
        outputs = ("boxes_px", "scores", "class_ids", "true_boxes_px", "true_class_ids")
        super().__init__(self._names, *outputs, crowd="crowd", areas="areas")
        self.begin()

    def begin(self) -> None:
        super().begin()
        self._rows = []
        self._counts = np.zeros(len(self._names), np.int64)

    def update(self, outputs: Mapping[str, np.ndarray], batch_size: int) -> None:
        super().update(outputs, batch_size)
        ids = outputs["true_class_ids"][outputs["crowd"] == 0]
        self._counts += np.bincount(ids[ids >= 0], minlength=len(self._names))

    def finish(self) -> Mapping[str, float]:
        metrics = super().finish()
        values = [metrics[f"ap/{name}"] for name in self._names]
        texts = ["-" if np.isnan(value) else f"{100 * value:.1f} %" for value in values]
        self._rows = [
            ("class", "AP", "boxes"),
            *zip(self._names, texts, map(str, self._counts), strict=True),
        ]
        return metrics

    def lines(self) -> Sequence[str]:
        return aligned(self._rows, "<>>")

    def report(self, folder: Path) -> Sequence[Path]:
        replace_file(folder / "classes.csv", csv_of(self._rows))
        return [folder / "classes.csv"]
