"""`tensorflow.compat.v1`, with the part of `tf.layers` that programs used before Keras 3.

    from towerpack import tf1 as tf

    x = tf.layers.conv2d(x, 32, 3, activation=tf.nn.relu, name='conv0')

`argscope` takes these layers too. What is not there is an AttributeError: Keras has its layers.
`slim_network` makes a network of tf_slim part of a tower, `regularize_cost_from_collection` gives
what `get_variable` and tf_slim collect.
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
    # Every tower loads this package; `LinearWrap` is to know these layers only if asked for.
    if name == "layers":
        return importlib.import_module("towerpack.tf1.layers")
    return getattr(tf.compat.v1, name)
