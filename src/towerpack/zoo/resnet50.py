"""ResNet-50 (He et al. 2016), as in `keras.applications`."""

from __future__ import annotations

import keras
import tensorflow as tf

from towerpack.nn import FullyConnected, expose
from towerpack.zoo._keras import KerasApplication


def net(image: tf.Tensor, num_classes: int) -> tf.Tensor:
    """Return logits [n, num_classes] of ResNet-50 with strides in the 1x1 convolutions.

    `SmartInit('resnet50.weights.h5')` loads Keras's weights. ImageNet weights need BGR images,
    with the means 103.939, 116.779, 123.68 subtracted.

    Args:
        image, num_classes: Images [n, h, w, 3] (224x224 in the paper), and number of classes.
    """
    features = KerasApplication("resnet50", image, keras.applications.ResNet50)
    expose("features", features)
    return FullyConnected("fc", features, num_classes)
