"""`tensorflow.compat.v1`, with the part of `tf.layers` that programs used before Keras 3.

    from towerpack import tf1 as tf

    x = tf.layers.conv2d(x, 32, 3, activation=tf.nn.relu, name='conv0')

`argscope` takes these layers too. What is not there is an AttributeError: Keras has its layers.
"""

from __future__ import annotations

from typing import Any

from towerpack._core.extras import require

require("tensorflow", extra="tf", needed_for="towerpack.tf1")

import tensorflow as tf

from towerpack.nn import _tf_layers as layers

__all__ = ["layers"]


def __getattr__(name: str) -> Any:
    return getattr(tf.compat.v1, name)
