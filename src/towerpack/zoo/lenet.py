"""LeNet (after LeCun et al. 1998), as in Tensorpack's tutorial, for images from 8x8 pixels."""

from __future__ import annotations

import tensorflow as tf

from towerpack.nn import Conv2D, FullyConnected, LinearWrap, argscope, expose


def net(image: tf.Tensor, num_classes: int, *, dropout: float = 0.5) -> tf.Tensor:
    """Return logits [n, num_classes] of four convolutions, two poolings and two dense layers.

    Args:
        image: [n, h, w, c] with known height and width.
        num_classes, dropout: Number of classes, and dropout rate of the features.
    """
    with argscope(Conv2D, filters=32, kernel_size=3, activation=tf.nn.relu):
        features = (
            LinearWrap(image)
            .Conv2D("conv0")
            .MaxPooling("pool0", 2)
            .Conv2D("conv1")
            .Conv2D("conv2")
            .MaxPooling("pool1", 2)
            .Conv2D("conv3")
            .FullyConnected("fc0", 512, activation=tf.nn.relu)
            .Dropout("dropout", dropout)()
        )
    expose("features", features)
    return FullyConnected("fc1", features, num_classes)
