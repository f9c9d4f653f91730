"""Numbers for each class, and the confusion matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from towerpack._core.columns import aligned
from towerpack._core.extras import require
from towerpack._core.files import csv_of, png_of, replace_file
from towerpack.apps._modeler import Reporting

# With more classes, cells of the picture get no numbers and axes no names.
_MOST_NUMBERS, _MOST_NAMES = 20, 60


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
        values = [*values[: len(self.names()) - 1], float(self._each()[2][there].mean())]
        return dict(zip(self.names(), values, strict=True))

    def lines(self) -> Sequence[str]:
        """A table with a row for each class."""
        return aligned(self._rows(), "<>>>>")

    def report(self, folder: Path) -> Sequence[Path]:
        """Write `classes.csv` and `confusion.png`."""
        table, picture = folder / "classes.csv", folder / "confusion.png"
        replace_file(table, csv_of(self._rows()))
        replace_file(picture, self._drawn())
        return [table, picture]

    def _each(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        right = np.diag(self.confusion).astype(float)
        precision = right / np.maximum(self.confusion.sum(axis=0), 1)
        recall = right / np.maximum(self.confusion.sum(axis=1), 1)
        return precision, recall, 2 * precision * recall / np.maximum(precision + recall, 1e-12)

    def _rows(self) -> list[tuple[str, ...]]:
        numbers = zip(*self._each(), strict=True)
        counts = self.confusion.sum(axis=1)
        return [
            ("class", "precision", "recall", "F1", "count"),
            *(
                (name, *(f"{100 * value:.1f} %" for value in values), f"{count}")
                for name, values, count in zip(self._names, numbers, counts, strict=True)
            ),
        ]

    def _drawn(self) -> bytes:
        require("matplotlib", extra="apps", needed_for="The confusion matrix")
        from matplotlib.figure import Figure

        size = len(self._names)
        shares = self.confusion / np.maximum(self.confusion.sum(axis=1, keepdims=True), 1)
        figure = Figure(
            figsize=(side := min(4 + 0.35 * size, 16), side * 0.9), layout="constrained"
        )
        axes = figure.add_subplot()
        shown = axes.imshow(100 * shares, cmap="Blues", vmin=0, vmax=100)
        figure.colorbar(shown, ax=axes, label="% of the true class", shrink=0.8)
        axes.set(xlabel="predicted", ylabel="true")
        if size <= _MOST_NAMES:
            axes.set_xticks(range(size), self._names, rotation=45, ha="right")
            axes.set_yticks(range(size), self._names)
        if size <= _MOST_NUMBERS:
            for row, column in np.argwhere(self.confusion):
                dark = shares[row, column] > 0.5
                text = str(self.confusion[row, column])
                axes.text(column, row, text, ha="center", va="center", color="w" if dark else "k")
        return png_of(figure)
