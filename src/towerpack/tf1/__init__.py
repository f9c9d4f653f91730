"""TensorFlow 1 API for older programs: `tensorflow.compat.v1` and the common `tf.layers`.

    from towerpack import tf1 as tf

    x = tf.layers.conv2d(x, 32, 3, activation=tf.nn.relu, name='conv0')

`argscope` works with these layers. Other layers of `tf.layers` raise AttributeError: use Keras.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from towerpack._core.extras import require

require("tensorflow", extra="tf", needed_for="towerpack.tf1")

import tensorflow as tf

from towerpack.tf1._regularize import (
    regularize_cost_from_collection as regularize_cost_from_collection,
)
from towerpack.tf1.slim import slim_network as slim_network

if TYPE_CHECKING:
    from towerpack.tf1 import layers as layers

__all__ = ["layers", "regularize_cost_from_collection", "slim_network"]


def __getattr__(name: str) -> Any:
    # Every tower loads this package, but `LinearWrap` shall know these layers only on request.
    if name == "layers":
        return importlib.import_module("towerpack.tf1.layers")
    return getattr(tf.compat.v1, name)
