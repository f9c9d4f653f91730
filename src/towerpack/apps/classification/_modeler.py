from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from towerpack._core.errors import ConfigError
from towerpack.apps._class_report import ClassificationReport, expose_classes
from towerpack.apps._modeler import Modeler
from towerpack.apps.classification._config import ClassificationConfig
from towerpack.apps.classification._image_inputter import ImageInputter
from towerpack.apps.classification._mixing import mix_batch
from towerpack.callbacks import ClassificationError, Inferencer, ScalarStats
from towerpack.config import Registry
from towerpack.ops.picture_files import picture_of
from towerpack.zoo import IMAGENET, NETWORKS
from towerpack.zoo.keras_applications import KerasNetwork

networks: Registry[Any] = Registry("network", NETWORKS)


class ClassificationModeler(Modeler):
    """Modeler of image classification, with cross-entropy as the loss.

    Exposes `'probabilities'` [n, classes], `'class_ids'` [n], `'incorrect'` [n], `'label'` [n].

    Args:
        config: Recipe.
        inputter: Data of the recipe.
        network: Replacement of the configured `net(image, num_classes, **options) -> logits`.
    """

    best = ("val/error", "min")
    infer_outputs = ("class_ids", "probabilities")
    config: ClassificationConfig
    inputter: ImageInputter

    def __init__(
        self, config: ClassificationConfig, inputter: ImageInputter, network: Any = None
    ) -> None:
        super().__init__(config, inputter)
        self.network = networks.get(network or config.model.network)
        self.num_classes = len(inputter.class_names)
        self._normalize = getattr(self.network, "normalize", inputter.augmenter.normalize)
        self._weights = self._class_weights(config.model.class_weights)

    def inputs(self) -> list[tf.TensorSpec]:
        data = self.config.data
        return [
            tf.TensorSpec([None, *data.size, data.channels], tf.uint8, "image"),
            tf.TensorSpec([None], tf.int64, "label"),
        ]

    def build_graph(self, image: tf.Tensor, label: tf.Tensor) -> tf.Tensor:
        model = self.config.model
        pixels = self._normalize(image)
        target = tf.one_hot(label, self.num_classes)
        if self.training:
            pixels, target = mix_batch(pixels, target, model.mixup, model.cutmix)
        logits = tf.cast(self.network(pixels, self.num_classes, **model.options), tf.float32)
        expose_classes(logits, label)
        target = (1 - model.label_smoothing) * target + model.label_smoothing / self.num_classes
        losses = tf.nn.softmax_cross_entropy_with_logits(target, logits)
        if self._weights is not None:
            losses *= tf.gather(tf.constant(self._weights), label)
        return self.with_decay(tf.reduce_mean(losses))

    def check_pixels(self, source: str | os.PathLike[str]) -> None:
        if not isinstance(self.network, KerasNetwork):  # which normalizes pixels itself
            super().check_pixels(source)

    def weights(self, source: str) -> Any:
        if source != IMAGENET:
            return source
        if not isinstance(self.network, KerasNetwork):
            raise ConfigError(
                f"The network {self.config.model.network} has no ImageNet weights of Keras.",
                fix="set model.network to keras:NAME, or transfer.pretrained to a file or run",
            )
        return self.network.imagenet_weights()

    def metrics(self) -> Sequence[Inferencer]:
        return [
            ScalarStats("cost"),
            ClassificationError("incorrect", "error"),
            ClassificationReport(self.inputter.class_names, self.config.model.top_k),
        ]

    def export_arguments(self) -> Mapping[str, Any]:
        """Return the class names, and a function that preprocesses image files."""
        geometry = self.inputter.geometry

        def preprocess(file: tf.Tensor) -> tf.Tensor:
            return geometry.tensors(picture_of(file))

        return {
            "outputs": "probabilities",
            "class_names": list(self.inputter.class_names),
            "preprocess": preprocess,
            "metadata": {"task": self.config.task, "preprocessing": geometry.as_dict()},
        }

    def _class_weights(self, weights: str | Sequence[float] | None) -> np.ndarray | None:
        if weights is None:
            return None
        if isinstance(weights, str):
            counts = np.asarray(self.inputter.class_counts("train"))
            return (counts.sum() / np.maximum(len(counts) * counts, 1)).astype(np.float32)
        if len(weights) != self.num_classes:
            raise ConfigError(
                f"model.class_weights must have one value for each of the {self.num_classes} "
                f"classes, got {len(weights)} values."
            )
        return np.asarray(weights, np.float32)
