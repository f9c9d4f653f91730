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
    """COCO's twelve numbers of a detector, computed by pycocotools.

    `ap` is the mean average precision over IoU thresholds 0.5, 0.55, …, 0.95; `ap50` and `ap75` are
    those at one threshold; `ar1`, `ar10` and `ar100` the mean recall of that many boxes a picture.
    `…_small` counts true boxes of less than 32² pixels, `…_large` of more than 96², `…_medium` the
    rest. A number of which there is nothing to say (no large box in the data) is NaN. Lin et al.
    2014, "Microsoft COCO: Common Objects in Context", and its detection evaluation.

    Boxes are corners x1, y1, x2, y2 in pixels of the picture. All pictures of a batch have as many
    rows; those to spare have the score 0, or the true class -1, and count for nothing.

    Args:
        classes: How many, or their names, which give `ap/<name>` for each one, too.
        boxes: Name of an output, float [batch, k, 4]: what was found.
        scores: Name of an output, float [batch, k]: how sure it is; only their order counts.
        labels: Name of an output, integers [batch, k]: the classes, from 0.
        true_boxes: Name of an output, float [batch, m, 4].
        true_labels: Name of an output, integers [batch, m].
        crowd: Name of an output, 0 or 1 [batch, m]: the box holds many things, so that what is
            found in it is neither right nor wrong.
        areas: Name of an output, float [batch, m]: areas of the true things in pixels (COCO's are
            those of their outlines); None for those of the boxes.

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
            raise ConfigError(f"DetectionAP({classes!r}) has no classes.", expected="at least one")
        require("pycocotools.cocoeval", extra="apps", needed_for="DetectionAP")
        self._found, self._true = [boxes, labels], [true_boxes, true_labels]
        self._score, self._crowd, self._areas = scores, crowd, areas
        DetectionAP.begin(self)

    def outputs(self) -> Sequence[str]:
        more = [name for name in (self._crowd, self._areas) if name is not None]
        return [*self._found, self._score, *self._true, *more]

    def names(self) -> Sequence[str]:
        return [*_TWELVE, *self._each]

    def begin(self) -> None:
        self._pictures = 0
        self._detections: list[dict[str, Any]] = []
        self._truth: list[dict[str, Any]] = []

    def update(self, outputs: Mapping[str, np.ndarray], batch_size: int) -> None:
        """Keep a batch's boxes. Raise `CallbackError` if an output is not as described."""
        self._keep(outputs, batch_size, self._found, {"score": self._score}, self._detections)
        more = {"iscrowd": self._crowd, "area": self._areas}
        self._keep(outputs, batch_size, self._true, more, self._truth)
        self._pictures += batch_size

    def _keep(
        self,
        outputs: Mapping[str, np.ndarray],
        batch_size: int,
        names: Sequence[str],
        more: Mapping[str, str | None],
        kept: list[dict[str, Any]],
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
        there = columns["score"] > 0 if "score" in columns else labels >= 0
        low, high = labels[there].min(initial=0), labels[there].max(initial=0)
        if low < 0 or high >= self._size:
            raise CallbackError(
                f"DetectionAP: '{names[1]}' holds something else than classes.",
                got=f"from {low} to {high}",
                expected=f"0 to {self._size - 1}",
            )
        corners = boxes.astype(np.float64)
        sizes = np.maximum(corners[..., 2:] - corners[..., :2], 0)
        odd = there & (corners[..., 2:] < corners[..., :2]).any(axis=-1)
        if kept is self._truth and odd.any():
            raise CallbackError(
                f"DetectionAP: '{names[0]}' has a box that ends before it begins.",
                got=str(corners[odd][0].tolist()),
                expected="x1, y1, x2, y2",
            )
        for row, column in zip(*np.nonzero(there), strict=True):
            own = {name: values[row, column].item() for name, values in columns.items()}
            box = [*corners[row, column, :2], *sizes[row, column]]
            # An id of 0 would mean "no match" to pycocotools.
            place = {"id": len(kept) + 1, "image_id": self._pictures + int(row), "bbox": box}
            kept.append({"iscrowd": 0, "area": float(sizes[row, column].prod())} | place | own)

    def finish(self) -> Mapping[str, float]:
        coco = require("pycocotools.coco", extra="apps", needed_for="DetectionAP")
        cocoeval = require("pycocotools.cocoeval", extra="apps", needed_for="DetectionAP")
        with contextlib.redirect_stdout(io.StringIO()):  # pycocotools tells what it does.
            sides = []
            for rows in (self._truth, self._detections):
                side = coco.COCO()
                side.dataset = {
                    "images": [{"id": i} for i in range(self._pictures)],
                    "categories": [{"id": i} for i in range(self._size)],
                    "annotations": rows,
                }
                side.createIndex()
                sides.append(side)
            run = cocoeval.COCOeval(*sides, "bbox")
            run.evaluate()
            run.accumulate()
            run.summarize()
        # [threshold, recall, class, all areas, 100 boxes]
        precision = run.eval["precision"][:, :, :, 0, 2]
        each = [precision[:, :, i].mean() for i in range(len(self._each))]
        values = [math.nan if value < 0 else float(value) for value in (*run.stats, *each)]
        return dict(zip(self.names(), values, strict=True))

    def __repr__(self) -> str:
        return f"DetectionAP({', '.join(map(repr, self.outputs()))})"


def _check(name: str, array: np.ndarray, shape: tuple[int, ...], kinds: str) -> None:
    finite = array.dtype.kind != "f" or bool(np.isfinite(array).all())
    if array.shape != shape or array.dtype.kind not in kinds or not finite:
        raise CallbackError(
            f"DetectionAP: the output '{name}' is not what it should be.",
            got=f"{array.dtype.name} {list(array.shape)}" + ("" if finite else ", not finite"),
            expected=f"{'finite numbers' if 'f' in kinds else 'integers'} {list(shape)}",
        )
