from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import tensorflow as tf

from towerpack._core.columns import aligned
from towerpack._core.files import csv_of, replace_file
from towerpack._core.logs import get_logger
from towerpack.apps._modeler import Modeler, Reporting
from towerpack.apps.detection._config import DetectionConfig
from towerpack.apps.detection._inputter import DetectionInputter
from towerpack.callbacks import DetectionAP, Inferencer, ScalarStats
from towerpack.checkpoint import read_torch_file
from towerpack.config import Registry
from towerpack.nn import expose, summary
from towerpack.ops.boxes import corner_scale, decode, suppress
from towerpack.ops.matching import match, multibox_loss
from towerpack.ops.picture_files import picture_of
from towerpack.training import SmartInit
from towerpack.zoo import has_pretrained
from towerpack.zoo.vgg16_reduced import from_torch

_LOG = get_logger(__name__)

_NETWORKS = {
    "ssd300": "towerpack.zoo.ssd:ssd300",
    "ssd512": "towerpack.zoo.ssd:ssd512",
    "ssd_lite": "towerpack.zoo.ssd_lite:net",
}
networks: Registry[Any] = Registry("network", _NETWORKS)
"""Functions `(image, num_classes, **options) -> towerpack.zoo.ssd.Predictions`, by name."""

OBJECTS: Final = (
    tf.TensorSpec([None, None, 4], tf.float32, "true_boxes"),
    tf.TensorSpec([None, None], tf.int32, "true_class_ids"),
    tf.TensorSpec([None, None], tf.bool, "crowd"),
    tf.TensorSpec([None, None], tf.float32, "areas"),
)
"""Specs of the objects in each image of a batch."""


def named(names: Sequence[str], detected: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """Return the name of the class of each detection. It is empty for missing detections."""
    texts = tf.gather(tf.constant(names), detected["class_ids"])
    return tf.where(detected["scores"] > 0, texts, "")


class DetectionModeler(Modeler):
    """Modeler of detection, with SSD's multi-box loss (Liu et al. 2016, section 2.2).

    Exposes `'boxes'` [n, max_boxes, 4] as fractions of the image size, `'scores'` and
    `'class_ids'`. Also exposes the predictions before non-maximum suppression, `'anchor_boxes'`
    [n, anchors, 4] and `'anchor_scores'` [n, anchors, classes], and for metrics `'boxes_px'`,
    `'true_boxes_px'`, `'true_class_ids'`, `'crowd'`, `'areas'`.

    Args:
        config: Recipe.
        inputter: Data of the recipe.
        network: Network that replaces `config.model.network`.
    """

    best = ("val/ap", "max")
    infer_outputs = ("boxes", "scores", "class_ids")
    portable_outputs = ("anchor_boxes", "anchor_scores")  # suppression differs in other formats
    config: DetectionConfig
    inputter: DetectionInputter

    def __init__(
        self, config: DetectionConfig, inputter: DetectionInputter, network: Any = None
    ) -> None:
        super().__init__(config, inputter)
        self.network = networks.get(network or config.model.network)
        self.class_names = list(inputter.class_names)

    def pretrained(self) -> SmartInit | None:
        is_default = self.config.model.network == "ssd_lite"
        if is_default and not self.config.transfer.pretrained and not has_pretrained():
            _LOG.warning(
                "Detection from random weights needs many more steps. Install "
                "'towerpack[pretrained]' to start from a pretrained backbone."
            )
        return super().pretrained()

    def inputs(self) -> list[tf.TensorSpec]:
        return [
            tf.TensorSpec([None, *self.config.data.size, 3], tf.uint8, "image"),
            *OBJECTS,
            tf.TensorSpec([None, 2], tf.int32, "size"),
        ]

    def build_graph(
        self,
        image: tf.Tensor,
        true_boxes: tf.Tensor,
        true_class_ids: tf.Tensor,
        crowd: tf.Tensor,
        areas: tf.Tensor,
        size: tf.Tensor,
    ) -> tf.Tensor:
        model = self.config.model
        pixels = self.inputter.augmenter.normalize(image)
        predictions = self.network(pixels, len(self.class_names), **model.options)
        anchors = tf.constant(predictions.anchors)
        boxes = decode(predictions.offsets, anchors)
        scores = tf.nn.softmax(predictions.logits)[:, :, 1:]
        best = suppress(
            boxes,
            scores,
            max_detections=model.max_boxes,
            score_threshold=model.score,
            iou_threshold=model.suppress,
        )
        scale = corner_scale(size)
        for name, value in {
            **best._asdict(),
            "anchor_boxes": boxes,
            "anchor_scores": scores,
            "boxes_px": best.boxes * scale,
            "true_boxes_px": true_boxes * scale,
            "true_class_ids": true_class_ids,
            "crowd": tf.cast(crowd, tf.int32),
            "areas": areas,
        }.items():
            expose(name, value)

        matches = match(anchors, true_boxes, true_class_ids, crowd, threshold=model.match)
        class_loss, box_loss = multibox_loss(
            predictions.logits, predictions.offsets, anchors, matches, negatives=model.negatives
        )
        summary.moving_average("train/class_loss", class_loss)
        summary.moving_average("train/box_loss", box_loss)
        return self.with_decay(class_loss + model.box_weight * box_loss)

    def metrics(self) -> Sequence[Inferencer]:
        return [ScalarStats("cost"), DetectionReport(self.class_names)]

    def weights(self, source: str) -> Any:
        """Read VGG-16 weights from `.pth` files. Return other sources unchanged."""
        if not source.endswith((".pth", ".pt")):
            return source
        return from_torch(read_torch_file(source))

    def export_arguments(self) -> Mapping[str, Any]:
        """Return a signature from image files to boxes, scores and class names."""
        geometry = self.inputter.geometry
        names = self.class_names

        def serve(compute: Callable[..., Any]) -> Any:
            shape = [geometry.height, geometry.width, geometry.channels]

            def read(file: tf.Tensor) -> tf.Tensor:
                return geometry.tensors(picture_of(file))

            def boxes(image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
                spec = tf.TensorSpec(shape, tf.uint8)
                detected = compute(tf.map_fn(read, image_bytes, fn_output_signature=spec))
                classes = named(names, detected)
                return {"classes": classes, **{key: detected[key] for key in ("boxes", "scores")}}

            files = [tf.TensorSpec([None], tf.string, "image_bytes")]
            return tf.function(boxes, input_signature=files, autograph=False)

        preprocessing = geometry.as_dict()
        about = {"task": self.config.task, "class_names": names, "preprocessing": preprocessing}
        return {"serve": serve, "metadata": about}


class DetectionReport(DetectionAP, Reporting):
    """Metric of COCO's twelve values over all images, and the average precision per class.

    Args:
        class_names: Names of the classes in the order of their labels.
        masks: Whether to also evaluate masks: the outputs `masks`, `true_masks` and `size`.
    """

    def __init__(self, class_names: Sequence[str], *, masks: bool = False) -> None:
        self._names = list(class_names)
        outputs = ("boxes_px", "scores", "class_ids", "true_boxes_px", "true_class_ids")
        columns = {name: name for name in ("crowd", "areas")}
        if masks:
            columns |= {name: name for name in ("masks", "true_masks", "size")}
        super().__init__(self._names, *outputs, **columns)
        self._prefixes = {"AP": "ap", **({"mask AP": "mask_ap"} if masks else {})}
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
        columns: list[Sequence[str]] = []
        for prefix in self._prefixes.values():
            values = [metrics[f"{prefix}/{name}"] for name in self._names]
            columns.append(["-" if np.isnan(v) else f"{100 * v:.1f} %" for v in values])
        self._rows = [
            ("class", *self._prefixes, "boxes"),
            *zip(self._names, *columns, map(str, self._counts), strict=True),
        ]
        return metrics

    def lines(self) -> Sequence[str]:
        return aligned(self._rows, "<" + ">" * (1 + len(self._prefixes)))

    def report(self, folder: Path) -> Sequence[Path]:
        replace_file(folder / "classes.csv", csv_of(self._rows))
        return [folder / "classes.csv"]
