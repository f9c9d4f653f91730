from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import tensorflow as tf

from towerpack.apps._modeler import Modeler
from towerpack.apps.detection._modeler import OBJECTS, DetectionReport, named
from towerpack.apps.instances._config import InstancesConfig
from towerpack.apps.instances._inputter import MASK_SIDE, STRIDE, InstancesInputter
from towerpack.callbacks import Inferencer
from towerpack.checkpoint import read_torch_file
from towerpack.config import Registry
from towerpack.nn import expose, summary
from towerpack.ops.boxes import corner_scale
from towerpack.ops.geometry import scaled_tensor
from towerpack.ops.picture_files import picture_of
from towerpack.zoo.mask_rcnn import MEAN, STD, from_torch

networks: Registry[Any] = Registry("network", {"mask_rcnn": "towerpack.zoo.mask_rcnn:MaskRCNN"})
"""Functions `(num_classes=, backbone=, masks=, **options)` to a network, by name."""


# Options of the small backbone, for pictures and objects of a size that a CPU can train.
_SMALL: Final[dict[str, Any]] = {
    "channels": 64,
    "anchor_sides": (16, 32, 64, 128, 256),
    "proposals": (300, 100),
    "anchors_before": (300, 200),
    "anchor_samples": (128, 0.5),
    "box_samples": (64, 0.25),
}


class InstancesModeler(Modeler):
    """Modeler of instance segmentation, with the losses of Faster and Mask R-CNN.

    Exposes `'boxes'` [n, k, 4] as fractions of the image size, `'scores'`, `'class_ids'`, and
    `'masks'` [n, k, 28, 28], the probabilities inside the boxes. For metrics it exposes
    `'boxes_px'`, `'true_boxes_px'`, `'true_class_ids'`, `'true_masks'`, `'crowd'`, `'areas'`,
    `'size'`.

    Args:
        config: Recipe.
        inputter: Data of the recipe.
        network: Network that replaces `config.model.network`.
    """

    config: InstancesConfig
    inputter: InstancesInputter

    def __init__(
        self, config: InstancesConfig, inputter: InstancesInputter, network: Any = None
    ) -> None:
        super().__init__(config, inputter)
        model = config.model
        is_small = model.backbone != "resnet50" and model.network == "mask_rcnn"
        options = (_SMALL if is_small else {}) | model.options
        self.class_names = list(inputter.class_names)
        self.network = networks.get(network or model.network)(
            num_classes=len(self.class_names),
            backbone=model.backbone,
            masks=model.masks,
            **{k: tuple(v) if isinstance(v, list) else v for k, v in options.items()},
        )
        self.best = ("val/mask_ap" if model.masks else "val/ap", "max")
        self.infer_outputs = ("boxes", "scores", "class_ids", *(["masks"] if model.masks else []))

    def inputs(self) -> list[tf.TensorSpec]:
        return [
            tf.TensorSpec([None, None, None, 3], tf.uint8, "image"),
            *OBJECTS,
            tf.TensorSpec([None, None, MASK_SIDE, MASK_SIDE], tf.uint8, "true_masks"),
            tf.TensorSpec([None, 2], tf.int32, "scaled"),
            tf.TensorSpec([None, 2], tf.int32, "size"),
        ]

    def build_graph(
        self,
        image: tf.Tensor,
        true_boxes: tf.Tensor,
        true_class_ids: tf.Tensor,
        crowd: tf.Tensor,
        areas: tf.Tensor,
        true_masks: tf.Tensor,
        scaled: tf.Tensor,
        size: tf.Tensor,
    ) -> tf.Tensor | None:
        height, width = tf.unstack(tf.shape(image)[1:3])
        rows, columns = (tf.sequence_mask(scaled[:, i], n) for i, n in enumerate((height, width)))
        valid = (rows[:, :, None] & columns[:, None])[..., None]
        pixels = tf.where(valid, (tf.cast(image, tf.float32) / 255 - MEAN) / STD, 0.0)
        if self.training:
            losses = self.network.losses(pixels, true_boxes, true_class_ids, crowd, true_masks)
            for name, loss in losses.items():
                summary.moving_average(f"train/{name}_loss", loss)
            return self.with_decay(tf.add_n(list(losses.values())))
        detected = self.network.detect(pixels, scaled)
        boxes = detected["boxes"] / corner_scale(scaled)
        for name, value in {
            **detected,
            "class_ids": tf.maximum(detected["class_ids"], 0),  # padding has score 0
            "boxes": boxes,
            "boxes_px": boxes * corner_scale(size),
            "true_boxes_px": true_boxes / corner_scale(scaled) * corner_scale(size),
            "true_class_ids": true_class_ids,
            "true_masks": true_masks,
            "crowd": tf.cast(crowd, tf.int32),
            "areas": areas,
            "size": size,
        }.items():
            expose(name, value)
        return None

    def check_pixels(self, source: str | os.PathLike[str]) -> None:
        del source  # The network converts pixels to the normalization of its backbone.

    def weights(self, source: str) -> Any:
        """Read torchvision's weights from `.pth` files. Return other sources unchanged."""
        return from_torch(read_torch_file(source)) if source.endswith((".pth", ".pt")) else source

    def metrics(self) -> Sequence[Inferencer]:
        return [DetectionReport(self.class_names, masks=self.config.model.masks)]

    def export_arguments(self) -> Mapping[str, Any]:
        """Return a signature from image files to boxes, masks, scores and class names."""
        names, data = self.class_names, self.config.data
        preprocessing = {"short_edge": data.short_edge[1], "long_edge": data.long_edge}
        keys = tuple(name for name in self.infer_outputs if name != "class_ids")

        def serve(compute: Callable[..., Any]) -> Any:
            def detect(file: tf.Tensor) -> dict[str, tf.Tensor]:
                image, scaled = _fit(picture_of(file), **preprocessing)
                detected = compute(image[None], scaled[None])
                classes = named(names, detected)
                return {"classes": classes[0], **{key: detected[key][0] for key in keys}}

            def instances(image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
                # Images differ in size, so each is computed alone.
                kinds = {key: tf.float32 for key in keys} | {"classes": tf.string}
                return tf.map_fn(detect, image_bytes, fn_output_signature=kinds)

            files = [tf.TensorSpec([None], tf.string, "image_bytes")]
            return tf.function(instances, input_signature=files, autograph=False)

        about = {"task": self.config.task, "class_names": names, "preprocessing": preprocessing}
        return {"serve": serve, "metadata": about}


def _fit(image: tf.Tensor, short_edge: int, long_edge: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Scale and pad an image as `InstancesInputter.prepare` does."""
    sides = tf.cast(tf.shape(image)[:2], tf.float64)
    factor = tf.minimum(short_edge / tf.reduce_min(sides), long_edge / tf.reduce_max(sides))
    after = tf.maximum(1, tf.cast(tf.floor(factor * sides + 0.5), tf.int32))
    bottom, right = tf.unstack(tf.math.floormod(-after, STRIDE))
    return tf.pad(scaled_tensor(image, after), [[0, bottom], [0, right], [0, 0]]), after
