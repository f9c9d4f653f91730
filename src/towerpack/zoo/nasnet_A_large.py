"""NASNet-A (6 @ 4032) (Zoph et al. 2018), as `keras.applications` has it."""

# ruff: noqa: N999

from __future__ import annotations

import keras
import tensorflow as tf

from towerpack.nn import Dropout, FullyConnected, expose
from towerpack.zoo._keras import KerasApplication


def net(image: tf.Tensor, num_classes: int, *, dropout: float = 0.5) -> tf.Tensor:
    """Eighteen normal and four reduction cells that a search has found, without auxiliary head.

    Keras's files of weights fit. Those for ImageNet need pixels from -1 to 1; the paper has images
    of 331x331.
    """
    features = KerasApplication("nasnet", image, keras.applications.NASNetLarge)
    expose("features", features)
    return FullyConnected("fc", Dropout("dropout", features, dropout), num_classes)
