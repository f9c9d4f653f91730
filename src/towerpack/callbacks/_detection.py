"""Average precision of detected boxes, as COCO defines it."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from towerpack._core.errors import CallbackError, ConfigError
from towerpack._core.extras import require
from towerpack.callbacks._inferencers import Inferencer

_TWELVE: Final = (
    *("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large"),
    *("ar1", "ar10", "ar100", "ar_small", "ar_medium", "ar_large"),
)


class DetectionAP(Inferencer):
    """The twelve COCO metrics of an object detector, computed by pycocotools.

    `ap` is the mean average precision over IoU thresholds 0.5, 0.55, …, 0.95; `ap50` and `ap75` use
    one threshold; `ar1`, `ar10` and `ar100` are the mean recall with that many boxes per image.
    `…_small` is for true boxes of less than 32² pixels, `…_large` for more than 96², `…_medium` for
    those between. Metrics without any data, such as large boxes, are NaN. Lin et al. 2014,
    "Microsoft COCO: Common Objects in Context", and its detection evaluation.

    Boxes are corners x1, y1, x2, y2 in pixels. Unused rows of a batch have score 0 or label -1.

    Args:
        classes: Number of classes, or their names, which also add a result `ap/<name>` for each.
        boxes: Name of a float output [batch, k, 4], the detected boxes.
        scores: Name of a float output [batch, k], by which the boxes are ranked.
        labels: Name of an integer output [batch, k], the classes from 0.
        true_boxes, true_labels: Names of float [batch, m, 4] and integer [batch, m] outputs.
        crowd: Name of an output of 0 and 1 [batch, m]: whether a true box encloses a group of
            objects. Detections in such a box are ignored.
        areas: Name of a float output [batch, m], the areas of the objects in pixels, such as those
            of COCO's outlines. None for the areas of the boxes.

    Raises:
        ConfigError: There are no classes.
        MissingExtraError: pycocotools is not installed.
    """

    better = "max"

    def __init__(
        self,
        classes: int | Sequence[str],
        boxes: str = "boxes",
        scores: str = "scores",
        labels: str = "classes",
        true_boxes: str = "true_boxes",
        true_labels: str = "true_classes",
        *,
        crowd: str | None = None,
        areas: str | None = None,
    ) -> None:
        self._size = classes if isinstance(classes, int) else len(classes)
        self._each = [] if isinstance(classes, int) else [f"ap/{name}" for name in classes]
        if self._size < 1:
            raise ConfigError(f"DetectionAP needs at least one class, got {classes!r}.")
        require("pycocotools.cocoeval", extra="apps", needed_for="DetectionAP")
        self._detected, self._true = [boxes, labels], [true_boxes, true_labels]
        self._score, self._crowd, self._areas = scores, crowd, areas
        DetectionAP.begin(self)

    def outputs(self) -> Sequence[str]:
        more = [name for name in (self._crowd, self._areas) if name is not None]
        return [*self._detected, self._score, *self._true, *more]

    def names(self) -> Sequence[str]:
        return [*_TWELVE, *self._each]

    def begin(self) -> None:
        self._images = 0
        self._detections: list[dict[str, Any]] = []
        self._truth: list[dict[str, Any]] = []

    def update(self, outputs: Mapping[str, np.ndarray], batch_size: int) -> None:
        self._add(outputs, batch_size, self._detected, {"score": self._score}, self._detections)
        more = {"iscrowd": self._crowd, "area": self._areas}
        self._add(outputs, batch_size, self._true, more, self._truth)
        self._images += batch_size

    def _add(
        self,
        outputs: Mapping[str, np.ndarray],
        batch_size: int,
        names: Sequence[str],
        more: Mapping[str, str | None],
        annotations: list[dict[str, Any]],
    ) -> None:
        boxes, labels = (np.asarray(outputs[name]) for name in names)
        shape = (batch_size, *boxes.shape[1:2])
        _check(names[0], boxes, (*shape, 4), "iuf")
        _check(names[1], labels, shape, "iu")
        columns = {"category_id": labels}
        for column, name in more.items():
            if name is not None:
                columns[column] = np.asarray(outputs[name])
                _check(name, columns[column], shape, "biuf")
        used = columns["score"] > 0 if "score" in columns else labels >= 0
        low, high = labels[used].min(initial=0), labels[used].max(initial=0)
        if low < 0 or high >= self._size:
            raise CallbackError(
                f"DetectionAP: classes in '{names[1]}' must be from 0 to {self._size - 1}, got "
                f"{low} to {high}."
            )
        corners = boxes.astype(np.float64)
        sizes = np.maximum(corners[..., 2:] - corners[..., :2], 0)
        reversed_ = used & (corners[..., 2:] < corners[..., :2]).any(axis=-1)
        if annotations is self._truth and reversed_.any():
            raise CallbackError(
                f"DetectionAP: boxes in '{names[0]}' must be x1, y1, x2, y2 with x1 ≤ x2 and "
                f"y1 ≤ y2, got {corners[reversed_][0].tolist()}."
            )
        for row, column in zip(*np.nonzero(used), strict=True):
            values = {name: array[row, column].item() for name, array in columns.items()}
            box = [*corners[row, column, :2], *sizes[row, column]]
            # An id of 0 would mean "no match" to pycocotools.
            keys = {"id": len(annotations) + 1, "image_id": self._images + int(row), "bbox": box}
            area = float(sizes[row, column].prod())
            annotations.append({"iscrowd": 0, "area": area} | keys | values)

    def finish(self) -> Mapping[str, float]:
        coco = require("pycocotools.coco", extra="apps", needed_for="DetectionAP")
        cocoeval = require("pycocotools.cocoeval", extra="apps", needed_for="DetectionAP")
        with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints its progress.
            datasets = []
            for rows in (self._truth, self._detections):
                dataset = coco.COCO()
                dataset.dataset = {
                    "images": [{"id": i} for i in range(self._images)],
                    "categories": [{"id": i} for i in range(self._size)],
                    "annotations": rows,
                }
                dataset.createIndex()
                datasets.append(dataset)
            run = cocoeval.COCOeval(*datasets, "bbox")
            run.evaluate()
            run.accumulate()
            run.summarize()
        # [threshold, recall, class, all areas, 100 boxes]
        precision = run.eval["precision"][:, :, :, 0, 2]
        each = [precision[:, :, i].mean() for i in range(len(self._each))]
        values = [math.nan if value < 0 else float(value) for value in (*run.stats, *each)]
        return dict(zip(self.names(), values, strict=True))


def _check(name: str, array: np.ndarray, shape: tuple[int, ...], kinds: str) -> None:
    finite = array.dtype.kind != "f" or bool(np.isfinite(array).all())
    if array.shape != shape or array.dtype.kind not in kinds or not finite:
        raise CallbackError(
            f"DetectionAP: the output '{name}' has a wrong type, shape or value.",
            got=f"{array.dtype.name} {list(array.shape)}" + ("" if finite else ", not finite"),
            expected=f"{'finite numbers' if 'f' in kinds else 'integers'} {list(shape)}",
        )
