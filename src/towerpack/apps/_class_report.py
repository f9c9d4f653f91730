from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from towerpack._core.columns import aligned
from towerpack._core.extras import require
from towerpack._core.files import csv_of, replace_file
from towerpack._core.pictures import png
from towerpack._display.figures import draw_confusion, pixels_of
from towerpack.apps._modeler import Reporting
from towerpack.callbacks._confusion import ConfusionMatrix, per_class
from towerpack.nn import expose, summary


def expose_classes(logits: tf.Tensor, label: tf.Tensor) -> None:
    """Expose `'probabilities'`, `'class_ids'`, `'incorrect'` and `'label'`. Summarize the error."""
    class_ids = tf.argmax(logits, axis=1)
    wrong = tf.cast(class_ids != label, tf.float32)
    expose("probabilities", tf.nn.softmax(logits))
    expose("class_ids", class_ids)
    expose("label", label)
    expose("incorrect", wrong)
    summary.moving_average("train/error", tf.reduce_mean(wrong))


def most_likely(
    class_names: Sequence[str], probabilities: np.ndarray, count: int
) -> list[dict[str, Any]]:
    """Return the `count` most likely classes as `{'class': name, 'probability': value}`."""
    order = np.argsort(-probabilities, kind="stable")[:count]
    return [{"class": class_names[i], "probability": float(probabilities[i])} for i in order]


class ClassificationReport(Reporting):
    """Metric of accuracy and top-k accuracy, and per class of precision, recall and F1.

    A class that was never predicted has precision 0. Means skip classes without datapoints.

    Args:
        class_names: Names of the classes in the order of their labels.
        top_k: A prediction is correct for top-k accuracy if the label is among this many most
            likely classes. Without effect if there are no more classes.
        auc: Whether to also compute the area under the ROC curve of each class against the others.
    """

    better = "max"

    def __init__(self, class_names: Sequence[str], top_k: int = 5, *, auc: bool = False) -> None:
        self._names = list(class_names)
        self._top_k = top_k if top_k < len(self._names) else 1
        self._matrix = ConfusionMatrix(self._names, "first", "label", draw=False)
        self._among = 0
        self._auc = auc
        self._seen: list[tuple[np.ndarray, np.ndarray]] = []

    @property
    def confusion(self) -> np.ndarray:
        """Confusion matrix of the evaluation so far: int64 [true class, predicted class]."""
        return self._matrix.matrix

    def outputs(self) -> Sequence[str]:
        return ["label", "probabilities"]

    def names(self) -> Sequence[str]:
        top = [f"top_{self._top_k}"] if self._top_k > 1 else []
        return ["accuracy", *top, "macro_f1", *(["roc_auc"] if self._auc else [])]

    def begin(self) -> None:
        self._matrix.begin()
        self._among = 0
        self._seen = []

    def update(self, outputs: Mapping[str, np.ndarray], batch_size: int) -> None:
        label, probabilities = outputs["label"], outputs["probabilities"]
        order = np.argsort(-probabilities, axis=1, kind="stable")[:, : self._top_k]
        self._matrix.update({"label": label, "first": order[:, 0]}, batch_size)
        self._among += int((order == label[:, None]).sum())
        if self._auc:
            self._seen.append((label, probabilities))

    def finish(self) -> Mapping[str, float]:
        num_present = (self.confusion.sum(axis=1) > 0).sum()
        values = {
            **self._matrix.finish(),
            f"top_{self._top_k}": self._among / max(int(self.confusion.sum()), 1),
            "roc_auc": float(np.nanmean(self._areas())) if self._auc and num_present > 1 else 0.5,
        }
        return {name: values[name] for name in self.names()}

    def lines(self) -> Sequence[str]:
        rows = self._rows()
        return aligned(rows, "<" + ">" * (len(rows[0]) - 1))

    def report(self, folder: Path) -> Sequence[Path]:
        table, picture = folder / "classes.csv", folder / "confusion.png"
        replace_file(table, csv_of(self._rows()))
        require("matplotlib", extra="apps", needed_for="The confusion matrix")
        replace_file(picture, png(pixels_of(draw_confusion(self.confusion, self._names))))
        return [table, picture]

    def _areas(self) -> np.ndarray:
        metrics = require("sklearn.metrics", extra="apps", needed_for="The area under the curve")
        label, scores = (np.concatenate(column) for column in zip(*self._seen, strict=True))
        counts = self.confusion.sum(axis=1)
        areas = np.full(len(counts), np.nan)
        for k in np.flatnonzero((counts > 0) & (counts < len(label))):
            areas[k] = metrics.roc_auc_score(label == k, scores[:, k])
        return areas

    def _columns(self) -> Mapping[str, Any]:
        columns = zip(("precision", "recall", "F1"), per_class(self.confusion), strict=True)
        return {**dict(columns), **({"AUC": self._areas()} if self._auc else {})}

    def _rows(self) -> list[tuple[str, ...]]:
        columns, counts = self._columns(), self.confusion.sum(axis=1)
        shares = zip(*columns.values(), strict=True)
        rows = [("class", *columns, "count")]
        for name, values, count in zip(self._names, shares, counts, strict=True):
            rows.append((name, *(f"{100 * value:.1f} %" for value in values), f"{count}"))
        return rows
