"""NASNet-A (6 @ 4032) (Zoph et al. 2018), as in `keras.applications`."""

# ruff: noqa: N999

from __future__ import annotations

import keras
import tensorflow as tf

from towerpack.nn import Dropout, FullyConnected, expose
from towerpack.zoo._keras import KerasApplication


def net(image: tf.Tensor, num_classes: int, *, dropout: float = 0.5) -> tf.Tensor:
    """Return logits [n, num_classes] for images, without the auxiliary head.

    Args:
        image: [n, h, w, 3] (331x331 in the paper). Keras's weights need pixels from -1 to 1.
        num_classes, dropout: Number of classes, and dropout rate of the features.
    """
    features = KerasApplication("nasnet", image, keras.applications.NASNetLarge)
    expose("features", features)
    return FullyConnected("fc", Dropout("dropout", features, dropout), num_classes)
