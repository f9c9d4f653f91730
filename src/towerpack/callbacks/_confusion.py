"""Confusion matrix with a plot, and mean intersection over union."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from towerpack._core.errors import CallbackError, ConfigError
from towerpack._core.extras import require
from towerpack._core.files import csv_of, replace_file
from towerpack._core.pictures import png
from towerpack._display.figures import draw_confusion, pixels_of
from towerpack.callbacks._host import TrainerHost
from towerpack.callbacks._inferencers import Inferencer


class ConfusionMatrix(Inferencer):
    """Confusion matrix over all datapoints, with metrics, a table and a plot.

    The results are `accuracy`, `balanced_accuracy` (mean recall) and `macro_f1` (mean F1 score).
    Means are over classes that have datapoints. Each evaluation writes `<prefix>-confusion.csv` and
    `.png` in the run directory, and puts the plot as an image.

    Args:
        classes: Names of the classes in the order of their numbers, or number of classes.
        prediction, label: Names of integer outputs of one shape, predicted and true classes.
        draw: Whether to draw the plot, which needs Matplotlib.

    Raises:
        ConfigError: There are fewer than two classes, or both outputs are the same.
        MissingExtraError: Matplotlib is not installed.

    Attributes:
        matrix: Counts of the evaluation so far, int64 [true class, predicted class].
    """

    better = "max"

    def __init__(
        self,
        classes: int | Sequence[str],
        prediction: str = "prediction",
        label: str = "label",
        *,
        draw: bool = True,
    ) -> None:
        names = [str(i) for i in range(classes)] if isinstance(classes, int) else [*classes]
        if len(names) < 2 or prediction == label:
            raise ConfigError(
                f"{type(self).__name__} needs at least two classes and two different outputs, got "
                f"{classes!r}, {prediction!r} and {label!r}."
            )
        if draw:
            require("matplotlib", extra="demo", needed_for="The picture of a confusion matrix")
        self._classes, self._draw = names, draw
        self._prediction, self._label = prediction, label
        self._ignore: int | None = None
        self.matrix = np.zeros([len(names)] * 2, np.int64)

    def outputs(self) -> Sequence[str]:
        return [self._prediction, self._label]

    def names(self) -> Sequence[str]:
        return ["accuracy", "balanced_accuracy", "macro_f1"]

    def begin(self) -> None:
        self.matrix[:] = 0

    def update(self, outputs: Mapping[str, np.ndarray], batch_size: int) -> None:
        predicted, true = (np.asarray(outputs[name]) for name in self.outputs())
        if self._ignore is not None and predicted.shape == true.shape:
            predicted, true = predicted[true != self._ignore], true[true != self._ignore]
        size = len(self._classes)
        both = np.concatenate([predicted.ravel(), true.ravel()])
        if (
            predicted.shape != true.shape
            or both.dtype.kind not in "iub"
            or (both.size and not 0 <= both.min() <= both.max() < size)
        ):
            raise CallbackError(
                f"{self!r}: both outputs must be class numbers of the same shape.",
                got=f"{predicted.dtype.name} {list(predicted.shape)} and {true.dtype.name} "
                f"{list(true.shape)}, from {both.min(initial=0)} to {both.max(initial=0)}",
                expected=f"integers from 0 to {size - 1}, in two arrays of one shape",
                fix="expose class numbers: expose('prediction', tf.argmax(logits, -1))",
            )
        cells = true.ravel().astype(np.int64) * size + predicted.ravel()
        self.matrix += np.bincount(cells, minlength=size * size).reshape(size, size)

    def finish(self) -> Mapping[str, float]:
        _, recall, f1 = per_class(self.matrix)
        present = self.matrix.sum(axis=1) > 0
        accuracy = np.trace(self.matrix) / max(int(self.matrix.sum()), 1)
        means = [float(v[present].mean()) if present.any() else 0.0 for v in (recall, f1)]
        return dict(zip(self.names(), [float(accuracy), *means], strict=True))

    def show(self, trainer: TrainerHost, prefix: str) -> None:
        path = trainer.run_dir / f"{prefix.replace('/', '-')}-confusion"
        rows = [["true \\ predicted", *self._classes]]
        rows += [
            [name, *row] for name, row in zip(self._classes, self.matrix.tolist(), strict=True)
        ]
        replace_file(path.with_suffix(".csv"), csv_of(rows))
        if self._draw:
            picture = pixels_of(draw_confusion(self.matrix, self._classes))
            replace_file(path.with_suffix(".png"), png(picture))
            trainer.monitors.put_image(f"{prefix}/confusion", picture, trainer.global_step)


class MeanIoU(ConfusionMatrix):
    """Mean over classes of the intersection over union of predicted and true pixels.

    Classes without predicted and true pixels are left out of the mean, as in Keras; their
    `iou/<name>` is NaN.

    Args:
        classes: Number of classes, or their names, which also add a result `iou/<name>` for each.
        prediction, label: Names of integer outputs of one shape, predicted and true classes.
        ignore: A label whose pixels are ignored, such as 255.
    """

    better = "max"

    def __init__(
        self,
        classes: int | Sequence[str],
        prediction: str = "prediction",
        label: str = "label",
        *,
        ignore: int | None = None,
    ) -> None:
        super().__init__(classes, prediction, label, draw=False)
        self._ignore = ignore
        self._each = [] if isinstance(classes, int) else [f"iou/{name}" for name in classes]

    def names(self) -> Sequence[str]:
        return ["mean_iou", *self._each]

    def finish(self) -> Mapping[str, float]:
        both = np.diag(self.matrix)
        either = self.matrix.sum(axis=0) + self.matrix.sum(axis=1) - both
        present = either > 0
        ious = np.where(present, both / np.maximum(either, 1), np.nan)
        mean = float(ious[present].mean()) if present.any() else 0.0
        values = [mean, *ious.tolist()][: len(self.names())]
        return dict(zip(self.names(), values, strict=True))

    def show(self, trainer: TrainerHost, prefix: str) -> None:
        pass


def per_class(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return precision, recall and F1 score of each class; 0 for classes without datapoints."""
    correct = np.diag(matrix).astype(float)
    precision = correct / np.maximum(matrix.sum(axis=0), 1)
    recall = correct / np.maximum(matrix.sum(axis=1), 1)
    return precision, recall, 2 * precision * recall / np.maximum(precision + recall, 1e-12)
