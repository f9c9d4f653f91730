"""The model: LeNet, as in the predecessor's tutorial."""

from __future__ import annotations

import keras
import tensorflow as tf

from towerpack.apps.digits._data import SIZE_PX
from towerpack.model import ModelDesc
from towerpack.nn import (
    Conv2D,
    LinearWrap,
    argscope,
    expose,
    l2_regularizer,
    regularize_cost,
    summary,
)

NUM_CLASSES = 10


class LeNet(ModelDesc):
    """Four convolutions, two poolings, two full connections.

    Exposes `'prob'` [batch, 10] and `'incorrect'` [batch] (1 where the class is wrong).

    Args:
        learning_rate: Adam's, at the start.
    """

    def __init__(self, learning_rate: float = 1e-3) -> None:
        self.learning_rate = learning_rate

    def inputs(self) -> list[tf.TensorSpec]:
        """Grey images from 0 to 1, and labels."""
        return [
            tf.TensorSpec([None, SIZE_PX, SIZE_PX], tf.float32, "image"),
            tf.TensorSpec([None], tf.int64, "label"),
        ]

    def build_graph(self, image: tf.Tensor, label: tf.Tensor) -> tf.Tensor:
        """Cross-entropy, and a little weight decay."""
        image = tf.expand_dims(image, -1) * 2 - 1
        with argscope(Conv2D, filters=32, kernel_size=3, activation=tf.nn.relu):
            logits = (
                LinearWrap(image)
                .Conv2D("conv0")
                .MaxPooling("pool0", 2)
                .Conv2D("conv1")
                .Conv2D("conv2")
                .MaxPooling("pool1", 2)
                .Conv2D("conv3")
                .FullyConnected("fc0", 512, activation=tf.nn.relu)
                .Dropout("dropout", 0.5)
                .FullyConnected("fc1", NUM_CLASSES)()
            )
        expose("prob", tf.nn.softmax(logits))
        wrong = tf.cast(tf.argmax(logits, axis=1) != label, tf.float32)
        expose("incorrect", wrong)
        summary.moving_average("train/error", tf.reduce_mean(wrong))
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(label, logits)
        return tf.reduce_mean(losses) + regularize_cost("fc.*/kernel", l2_regularizer(1e-5))

    def optimizer(self) -> keras.optimizers.Optimizer:
        """Adam."""
        return keras.optimizers.Adam(self.learning_rate)
