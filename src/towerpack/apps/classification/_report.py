"""Numbers for each class, and the confusion matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from towerpack._core.columns import aligned
from towerpack._core.extras import require
from towerpack._core.figures import draw_confusion, png_of
from towerpack._core.files import csv_of, replace_file
from towerpack.apps._modeler import Reporting
from towerpack.callbacks._confusion import per_class


class ClassificationReport(Reporting):
    """Accuracy, top-k, and of each class precision, recall, F1 and number of datapoints.

    A class that was never predicted has precision 0. The means over classes leave out classes that
    have no datapoints.

    Args:
        class_names: In the order of their numbers.
        top_k: Count whether the class is among so many.
    """

    def __init__(self, class_names: Sequence[str], top_k: int = 5) -> None:
        self._names = list(class_names)
        self._top_k = min(top_k, len(self._names))
        self.confusion = np.zeros([len(self._names)] * 2, np.int64)
        self._among = 0

    def outputs(self) -> Sequence[str]:
        """Labels and probabilities."""
        return ["label", "probabilities"]

    def names(self) -> Sequence[str]:
        """Accuracy, top-k, mean F1."""
        top = [f"top_{self._top_k}"] if self._top_k > 1 else []
        return ["accuracy", *top, "macro_f1"]

    def begin(self) -> None:
        """Start from zero."""
        self.confusion[:] = 0
        self._among = 0

    def update(self, outputs: Mapping[str, np.ndarray], batch_size: int) -> None:
        """Add a batch."""
        label, probabilities = outputs["label"], outputs["probabilities"]
        order = np.argsort(-probabilities, axis=1, kind="stable")[:, : self._top_k]
        np.add.at(self.confusion, (label, order[:, 0]), 1)
        self._among += int((order == label[:, None]).sum())

    def finish(self) -> Mapping[str, float]:
        """The means."""
        count = max(int(self.confusion.sum()), 1)
        there = self.confusion.sum(axis=1) > 0
        values = [float(np.trace(self.confusion)) / count, self._among / count]
        values = [
            *values[: len(self.names()) - 1],
            float(per_class(self.confusion)[2][there].mean()),
        ]
        return dict(zip(self.names(), values, strict=True))

    def lines(self) -> Sequence[str]:
        """A table with a row for each class."""
        return aligned(self._rows(), "<>>>>")

    def report(self, folder: Path) -> Sequence[Path]:
        """Write `classes.csv` and `confusion.png`."""
        table, picture = folder / "classes.csv", folder / "confusion.png"
        replace_file(table, csv_of(self._rows()))
        require("matplotlib", extra="apps", needed_for="The confusion matrix")
        replace_file(picture, png_of(draw_confusion(self.confusion, self._names)))
        return [table, picture]

    def _rows(self) -> list[tuple[str, ...]]:
        numbers = zip(*per_class(self.confusion), strict=True)
        counts = self.confusion.sum(axis=1)
        return [
            ("class", "precision", "recall", "F1", "count"),
            *(
                (name, *(f"{100 * value:.1f} %" for value in values), f"{count}")
                for name, values, count in zip(self._names, numbers, counts, strict=True)
            ),
        ]
