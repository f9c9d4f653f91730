"""A detector that learns in seconds: five convolutions, one feature map."""

from __future__ import annotations

import tensorflow as tf

from towerpack.nn import BNReLU, Conv2D, argscope
from towerpack.ops.anchors import AnchorLevel
from towerpack.zoo.ssd import Predictions, predictions


def net(image: tf.Tensor, num_classes: int) -> Predictions:
    """Anchors of 18 to 25 pixels at stride 8."""
    x = image
    with argscope(Conv2D, kernel_size=3, activation=BNReLU):
        for number, (filters, strides) in enumerate(((16, 2), (32, 2), (64, 2), (64, 1))):
            x = Conv2D(f"conv{number}", x, filters, strides=strides)
    return predictions(image, [x], [AnchorLevel(8, 18, 30, (2.0,))], num_classes, Conv2D)
