from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from towerpack._core.errors import ConfigError
from towerpack.apps._class_report import ClassificationReport
from towerpack.apps._modeler import Modeler
from towerpack.apps.segmentation._classes import VOID, Classes
from towerpack.apps.segmentation._config import SegmentationConfig
from towerpack.apps.segmentation._inputter import SceneInputter
from towerpack.callbacks import Inferencer, MeanIoU, ScalarStats
from towerpack.config import Registry
from towerpack.nn import expose, summary
from towerpack.ops.cross_entropy import cross_entropy
from towerpack.ops.picture_files import picture_of

networks: Registry[Any] = Registry(
    "network", {name: f"towerpack.zoo.{name}:net" for name in ("fcn", "unet", "deeplab")}
)


class SegmentationModeler(Modeler):
    """Modeler of segmentation, with cross-entropy at each pixel that is not void.

    Exposes `'probabilities'` [n, h, w, classes], `'prediction'` and `'label'` [n, h, w].

    Args:
        config: Recipe.
        inputter: Data of the recipe.
        network: Replacement of the configured `net(image, num_classes, **options) -> logits`.

    Raises:
        ConfigError: The number of class weights is not the number of classes.
    """

    best = ("val/mean_iou", "max")
    infer_outputs = ("probabilities",)
    config: SegmentationConfig
    inputter: SceneInputter

    def __init__(
        self, config: SegmentationConfig, inputter: SceneInputter, network: Any = None
    ) -> None:
        super().__init__(config, inputter)
        self.network = networks.get(network or config.model.network)
        self.classes = inputter.classes
        weights = config.model.class_weights
        if weights is not None and len(weights) != len(self.classes.names):
            raise ConfigError(
                f"model.class_weights must have one value for each of the "
                f"{len(self.classes.names)} classes, got {len(weights)} values."
            )

    def inputs(self) -> list[tf.TensorSpec]:
        data = self.config.data
        return [
            tf.TensorSpec([None, *data.size, data.channels], tf.uint8, "image"),
            tf.TensorSpec([None, *data.size], tf.uint8, "label"),
        ]

    def build_graph(self, image: tf.Tensor, label: tf.Tensor) -> tf.Tensor:
        model, counted = self.config.model, self.classes.counted
        pixels = self.inputter.augmenter.normalize(image)
        logits = tf.cast(self.network(pixels, len(counted), **model.options), tf.float32)
        # Void classes are never predicted.
        logits = tf.where(counted, logits, tf.float32.min)
        expose("probabilities", tf.nn.softmax(logits))
        prediction, truth = tf.argmax(logits, -1), tf.cast(label, tf.int64)
        expose("prediction", tf.cast(prediction, tf.int32))
        expose("label", tf.cast(label, tf.int32))
        is_valid = truth != VOID
        target = tf.where(is_valid, truth, tf.zeros([], tf.int64))
        weights = tf.cast(is_valid, tf.float32)
        is_correct = tf.cast(prediction == truth, tf.float32)
        summary.moving_average("train/accuracy", _mean(is_correct, weights))
        losses = cross_entropy(target, logits)
        if model.class_weights is not None:
            weights *= tf.gather(tf.constant(model.class_weights), target)
        # The loss of void pixels may be huge, because void classes have the lowest logit.
        return self.with_decay(_mean(tf.where(is_valid, losses, 0.0), weights))

    def metrics(self) -> Sequence[Inferencer]:
        return [ScalarStats("cost"), SegmentationReport(self.classes)]

    def export_arguments(self) -> Mapping[str, Any]:
        """Return a signature from image files to label images of the original size."""
        geometry = self.inputter.geometry

        def serve(compute: Callable[..., Any]) -> Any:
            shape = [geometry.height, geometry.width, geometry.channels]
            read_as = (tf.TensorSpec(shape, tf.uint8), tf.TensorSpec([2], tf.int32))

            def read(file: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
                picture = picture_of(file)
                return geometry.tensors(picture), tf.shape(picture)[:2]

            def mask(pair: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
                class_ids = tf.argmax(tf.image.resize(*pair), -1)
                return tf.io.encode_png(tf.cast(class_ids, tf.uint8)[:, :, None])

            def masks(image_bytes: tf.Tensor) -> dict[str, Any]:
                images, sizes = tf.map_fn(read, image_bytes, fn_output_signature=read_as)
                pairs = (compute(images)["probabilities"], sizes)
                text = tf.TensorSpec([], tf.string)
                return {"mask_bytes": tf.map_fn(mask, pairs, fn_output_signature=text)}

            files = [tf.TensorSpec([None], tf.string, "image_bytes")]
            return tf.function(masks, input_signature=files, autograph=False)

        about = {
            "task": self.config.task,
            "class_names": list(self.classes.names),
            "colours": list(map(list, self.classes.colors)),
            "preprocessing": geometry.as_dict(),
        }
        return {"serve": serve, "metadata": about}


class SegmentationReport(ClassificationReport):
    """Metric of pixel accuracy and intersection over union (IoU), as a mean and per class.

    Counts all pixels that are not void, at the network's input size. The IoU of a class that is
    neither labeled nor predicted is NaN, and the mean skips it.

    Args:
        classes: Classes of the data.
    """

    better = "max"

    def __init__(self, classes: Classes) -> None:
        super().__init__(classes.names, 1)
        self._matrix = MeanIoU(classes.names, ignore=VOID)

    def outputs(self) -> Sequence[str]:
        return self._matrix.outputs()

    def names(self) -> Sequence[str]:
        return ["pixel_accuracy", *self._matrix.names()]

    def update(self, outputs: Mapping[str, np.ndarray], batch_size: int) -> None:
        self._matrix.update(outputs, batch_size)

    def finish(self) -> Mapping[str, float]:
        right, pixels = int(np.trace(self.confusion)), int(self.confusion.sum())
        return {"pixel_accuracy": right / max(pixels, 1), **self._matrix.finish()}

    def _columns(self) -> Mapping[str, Any]:
        metrics = self.finish()
        return {**super()._columns(), "IoU": [metrics[f"iou/{name}"] for name in self._names]}


def _mean(values: tf.Tensor, weights: tf.Tensor) -> Any:
    return tf.math.divide_no_nan(tf.reduce_sum(values * weights), tf.reduce_sum(weights))
