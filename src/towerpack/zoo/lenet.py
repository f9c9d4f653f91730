"""LeNet, in the form of the predecessor's tutorial: for digits of 8x8 pixels or more."""

from __future__ import annotations

import tensorflow as tf

from towerpack.nn import Conv2D, FullyConnected, LinearWrap, argscope, expose


def net(image: tf.Tensor, num_classes: int, *, dropout: float = 0.5) -> tf.Tensor:
    """Four convolutions, two poolings, two full connections, after LeCun et al. (1998).

    Height and width of the image must be known.
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
