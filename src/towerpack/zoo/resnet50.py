"""ResNet-50 (He et al. 2016), as `keras.applications` has it."""

from __future__ import annotations

import keras
import tensorflow as tf

from towerpack.nn import FullyConnected, expose
from towerpack.zoo._keras import KerasApplication


def net(image: tf.Tensor, num_classes: int) -> tf.Tensor:
    """Sixteen bottleneck blocks; convolutions of 1x1 have the strides, as in the paper.

    Keras's files of weights fit: `SmartInit('resnet50.weights.h5')`. Those for ImageNet need blue,
    green, red, with the means 103.939, 116.779, 123.68 subtracted. The paper has images of 224x224.
    """
    features = KerasApplication("resnet50", image, keras.applications.ResNet50)
    expose("features", features)
    return FullyConnected("fc", features, num_classes)
