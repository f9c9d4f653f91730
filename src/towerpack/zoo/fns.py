"""Fast neural style (Johnson et al. 2016), with the layer shapes of Lambda's demo suite.

Unlike in the demo suite, convolutions share no variables, and normalization is instance
normalization with scale and offset (Ulyanov et al. 2016). The network has 1,817,731 parameters.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from towerpack.nn import Conv2D, Conv2DTranspose, InstanceNorm, argscope, scope
from towerpack.zoo.fcn import enlarged


def net(image: tf.Tensor, *, width: int = 32, blocks: int = 5) -> tf.Tensor:
    """Return stylized images, computed with residual blocks at a quarter of the image size.

    Args:
        image: [n, h, w, 3] from -1 to 1, of at least 4x4 pixels.
        width: Filters at full size. Half and quarter size have two and four times as many.
        blocks: Number of residual blocks.

    Returns:
        Images float32 [n, h, w, 3] from 0 to 255.
    """
    with argscope([Conv2D, Conv2DTranspose], use_bias=False, activation=_relu):
        x = half = _conv("down0", image, width, 8)
        x = quarter = Conv2D("down1", x, 2 * width, 4, strides=2)
        x = Conv2D("down2", x, 4 * width, 4, strides=2)
        for i in range(blocks):
            with scope(f"block{i}"):
                y = _conv("conv1", x, 4 * width, 3)
                x += _conv("conv2", y, 4 * width, 3, activation=_normalized)
        x = enlarged("up0", x, quarter, 2 * width)
        x = enlarged("up1", x, half, width)
        x = _conv("picture", x, 3, 8, activation=None, use_bias=True)
    return tf.tanh(tf.cast(x, tf.float32)) * 127.5 + 127.5


def _conv(name: str, x: tf.Tensor, filters: int, size: int, **options: Any) -> tf.Tensor:
    # Mirror the borders, because zeros would cause a dark frame.
    before = (size - 1) // 2
    sides = [before, size - 1 - before]
    x = tf.pad(x, [[0, 0], sides, sides, [0, 0]], "SYMMETRIC")
    return Conv2D(name, x, filters, size, padding="valid", **options)


def _normalized(x: tf.Tensor) -> tf.Tensor:
    return InstanceNorm("norm", x)


def _relu(x: tf.Tensor) -> tf.Tensor:
    return tf.nn.relu(_normalized(x))
