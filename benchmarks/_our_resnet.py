"""`resnet20` of `_trainers_contenders.py` in Towerpack's layers."""

from __future__ import annotations

import keras
import tensorflow as tf

from towerpack import ModelDesc
from towerpack.nn import BatchNorm, Conv2D, FullyConnected, GlobalAvgPooling


def resnet20(image: tf.Tensor, classes: int = 10) -> tf.Tensor:
    """Logits of pictures, uint8 [batch, 32, 32, 3]."""
    x = tf.cast(image, tf.float32) / 127.5 - 1
    x = tf.nn.relu(_conv("conv0", x, 16))
    for filters in (16, 32, 64):
        for number in range(3):
            name = f"group{filters}/block{number}"
            stride = filters // x.shape[-1]
            body = _conv(
                f"{name}/conv2", tf.nn.relu(_conv(f"{name}/conv1", x, filters, stride)), filters
            )
            if stride > 1:
                x = Conv2D(f"{name}/shortcut", x, filters, 1, stride)
            x = tf.nn.relu(body + x)
    return FullyConnected("logits", GlobalAvgPooling("pool", x), classes)


def _conv(name: str, x: tf.Tensor, filters: int, stride: int = 1) -> tf.Tensor:
    x = Conv2D(name, x, filters, 3, stride, use_bias=False)
    return BatchNorm(f"{name}/bn", x, momentum=0.99, epsilon=1e-3)


class OurResNet20(ModelDesc):
    """He et al. (2015) for CIFAR-10."""

    def inputs(self) -> list[tf.TensorSpec]:
        """Pictures and labels."""
        return [
            tf.TensorSpec([None, 32, 32, 3], tf.uint8, "image"),
            tf.TensorSpec([None], tf.int64, "label"),
        ]

    def build_graph(self, image: tf.Tensor, label: tf.Tensor) -> tf.Tensor:
        """The mean loss."""
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(label, resnet20(image))
        return tf.reduce_mean(losses)

    def optimizer(self) -> keras.optimizers.Optimizer:
        """As the other contenders'."""
        return keras.optimizers.SGD(0.05, momentum=0.9)
