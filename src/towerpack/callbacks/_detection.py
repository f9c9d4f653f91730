"""Average precision of detected boxes and masks, as COCO defines it."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from towerpack._core.coco_masks import coco_masks
from towerpack._core.errors import CallbackError, ConfigError
from towerpack._core.extras import require
from towerpack.callbacks._inferencers import Inferencer
from towerpack.ops.box_masks import paste_mask

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

    With masks, the same metrics follow for masks: `mask_ap`, `mask_ap50`, and so on. A mask is an
    array over the inside of its box, from 0 to 1 (uint8: 0 to 255). It is resampled to the pixels
    of the image and cut at 0.5.

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
        masks, true_masks: Names of outputs [batch, k, h, w] and [batch, m, h, w]: the masks inside
            the boxes. None to evaluate only boxes.
        size: Name of an integer output [batch, 2], height and width of the images. Masks need it.

    Raises:
        ConfigError: There are no classes, or only some of the three outputs for masks.
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
        masks: str | None = None,
        true_masks: str | None = None,
        size: str | None = None,
    ) -> None:
        self._size = classes if isinstance(classes, int) else len(classes)
        each = [] if isinstance(classes, int) else [f"ap/{name}" for name in classes]
        if self._size < 1:
            raise ConfigError(f"DetectionAP needs at least one class, got {classes!r}.")
        masked = [name for name in (masks, true_masks, size) if name is not None]
        if len(masked) not in (0, 3):
            raise ConfigError(
                f"DetectionAP evaluates masks from three outputs, got only {', '.join(masked)}.",
                fix="pass all of masks=, true_masks= and size=",
            )
        require("pycocotools.cocoeval", extra="apps", needed_for="DetectionAP")
        self._kinds = {"bbox": "", **({"segm": "mask_"} if masked else {})}
        self._names_of_kind = [*_TWELVE, *each]
        self._masks, self._true_masks, self._image_size = masks, true_masks, size
        self._detected, self._true = [boxes, labels], [true_boxes, true_labels]
        self._score, self._crowd, self._areas = scores, crowd, areas
        DetectionAP.begin(self)

    def outputs(self) -> Sequence[str]:
        more = self._crowd, self._areas, self._masks, self._true_masks, self._image_size
        wanted = [*self._detected, self._score, *self._true]
        return [*wanted, *(name for name in more if name is not None)]

    def names(self) -> Sequence[str]:
        return [prefix + name for prefix in self._kinds.values() for name in self._names_of_kind]

    def begin(self) -> None:
        self._images = 0
        self._detections: list[dict[str, Any]] = []
        self._truth: list[dict[str, Any]] = []

    def update(self, outputs: Mapping[str, np.ndarray], batch_size: int) -> None:
        more: dict[str, str | None] = {"score": self._score}
        self._add(outputs, batch_size, self._detected, more, self._detections, self._masks)
        more = {"iscrowd": self._crowd, "area": self._areas}
        self._add(outputs, batch_size, self._true, more, self._truth, self._true_masks)
        self._images += batch_size

    def _add(
        self,
        outputs: Mapping[str, np.ndarray],
        batch_size: int,
        names: Sequence[str],
        more: Mapping[str, str | None],
        annotations: list[dict[str, Any]],
        masks: str | None,
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
            if masks is not None and self._image_size is not None:
                h, w = (int(side) for side in outputs[self._image_size][row])
                mask = paste_mask(outputs[masks][row, column], corners[row, column], (h, w))
                annotations[-1]["segmentation"] = _run_lengths(mask)
                annotations[-1]["mask_area"] = values.get("area", float(mask.sum()))

    def finish(self) -> Mapping[str, float]:
        every = [value for kind in self._kinds for value in self._evaluated(kind)]
        return dict(zip(self.names(), every, strict=True))

    def _evaluated(self, kind: str) -> list[float]:
        """Return the metrics of boxes (`'bbox'`) or masks (`'segm'`)."""
        coco = require("pycocotools.coco", extra="apps", needed_for="DetectionAP")
        cocoeval = require("pycocotools.cocoeval", extra="apps", needed_for="DetectionAP")
        with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints its progress.
            datasets = []
            for rows in (self._truth, self._detections):
                if kind == "segm":
                    rows = [{**row, "area": row["mask_area"]} for row in rows]
                dataset = coco.COCO()
                dataset.dataset = {
                    "images": [{"id": i, "height": 0, "width": 0} for i in range(self._images)],
                    "categories": [{"id": i} for i in range(self._size)],
                    "annotations": rows,
                }
                dataset.createIndex()
                datasets.append(dataset)
            run = cocoeval.COCOeval(*datasets, kind)
            run.evaluate()
            run.accumulate()
            run.summarize()
        # [threshold, recall, class, all areas, 100 boxes]
        precision = run.eval["precision"][:, :, :, 0, 2]
        count = len(self._names_of_kind) - len(_TWELVE)
        each = [precision[:, :, i].mean() for i in range(count)]
        return [math.nan if value < 0 else float(value) for value in (*run.stats, *each)]


def _run_lengths(mask: np.ndarray) -> Any:
    with coco_masks("DetectionAP") as masks:
        return masks.encode(np.asfortranarray(mask, np.uint8))


def _check(name: str, array: np.ndarray, shape: tuple[int, ...], kinds: str) -> None:
    finite = array.dtype.kind != "f" or bool(np.isfinite(array).all())
    if array.shape != shape or array.dtype.kind not in kinds or not finite:
        raise CallbackError(
            f"DetectionAP: the output '{name}' has a wrong type, shape or value.",
            got=f"{array.dtype.name} {list(array.shape)}" + ("" if finite else ", not finite"),
            expected=f"{'finite numbers' if 'f' in kinds else 'integers'} {list(shape)}",
        )
