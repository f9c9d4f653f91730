"""ResNet-20, 32, 44, 56 and 110 for small images (He et al. 2016, section 4.2)."""

from __future__ import annotations

from functools import partial

import tensorflow as tf

from towerpack._core.errors import ConfigError
from towerpack.nn import (
    BatchNorm,
    BNReLU,
    Conv2D,
    FullyConnected,
    GlobalAvgPooling,
    argscope,
    expose,
    scope,
)


def net(image: tf.Tensor, num_classes: int, *, depth: int = 32) -> tf.Tensor:
    """Return logits [n, num_classes] of residual blocks with 16, 32 and 64 channels.

    Shortcuts between stages take every second pixel and pad new channels with zeros (option A of
    the paper).

    Args:
        image, num_classes: Images [n, h, w, c] (32x32 in the paper), and number of classes.
        depth: Number of layers with weights: 6 n + 2.

    Raises:
        ConfigError: `depth` is not 6 n + 2.
    """
    if depth < 8 or depth % 6 != 2:
        what = f"The depth of a ResNet for small images must be 6 n + 2, got {depth}."
        raise ConfigError(what, fix="set depth to 20, 32, 44, 56 or 110")
    with argscope(Conv2D, kernel_size=3, use_bias=False):
        x = Conv2D("conv0", image, 16, activation=BNReLU)
        for stage, filters in enumerate((16, 32, 64)):
            for block in range((depth - 2) // 6):
                with scope(f"stage{stage}/block{block}"):
                    x = _block(x, filters, strides=2 if stage and not block else 1)
    features = GlobalAvgPooling("pool", x)
    expose("features", features)
    return FullyConnected("fc", features, num_classes)


def _block(x: tf.Tensor, filters: int, strides: int) -> tf.Tensor:
    y = x
    if strides > 1:
        # 'same' would center the kernels on odd pixels, but the shortcut takes even pixels.
        y = tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]])
        x = tf.pad(x[:, ::strides, ::strides], [[0, 0], [0, 0], [0, 0], [filters // 4] * 2])
    padding = "valid" if strides > 1 else "same"
    y = Conv2D("conv1", y, filters, strides=strides, padding=padding, activation=BNReLU)
    y = BatchNorm("bn", Conv2D("conv2", y, filters))
    return tf.nn.relu(x + y)


resnet20, resnet32, resnet44, resnet56, resnet110 = (
    partial(net, depth=depth) for depth in (20, 32, 44, 56, 110)
)
