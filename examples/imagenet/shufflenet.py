"""ShuffleNet (Zhang et al. 2018) and ShuffleNet v2 (Ma et al. 2018), named as in Tensorpack.

The number at the end of a name is the width: `v1_half` has half of the paper's channels, in 8
groups. `SmartInit('ShuffleNetV2-0.5x.npz')` loads Tensorpack's published weights into `v2_half`.

    cd examples
    towerpack train imagenet/resnet50.yaml --allow-code model.network=imagenet.shufflenet:v2_half

Reached: the logits of Tensorpack's own networks, see `tests/unit/zoo/test_tensorpack_weights.py`.
`v2_half` on scikit-learn's digits: 81.7 % correct after 6 epochs. ImageNet: not yet measured.
"""

from __future__ import annotations

import math

import tensorflow as tf
from imagenet.pixels import standardized_bgr

from towerpack.nn import (
    AvgPooling,
    BatchNorm,
    BNReLU,
    Conv2D,
    DepthwiseConv2D,
    FullyConnected,
    GlobalAvgPooling,
    MaxPooling,
    argscope,
    expose,
    scope,
)

V1_CHANNELS = {3: (240, 480, 960), 4: (272, 544, 1088), 8: (384, 768, 1536)}
V2_CHANNELS = {0.5: (48, 96, 192), 1.0: (116, 232, 464)}


class ShuffleNet:
    """Network `net(image, num_classes)` of recipes, which returns logits [n, num_classes].

    Args:
        width: Factor of the paper's numbers of channels; for version 2: 0.5 or 1.
        groups: Number of groups: 3, 4 or 8; None for version 2.
    """

    normalize = staticmethod(standardized_bgr)

    def __init__(self, width: float, groups: int | None) -> None:
        self.groups = groups
        if groups is None:
            self.first, self.channels = 24, V2_CHANNELS[width]
        else:
            self.first = _multiple(24 * width, groups)
            self.channels = [_multiple(n * width, 4 * groups) for n in V1_CHANNELS[groups]]

    def __call__(self, image: tf.Tensor, num_classes: int) -> tf.Tensor:
        with argscope([Conv2D, DepthwiseConv2D], use_bias=False):
            x = Conv2D("conv1", image, self.first, 3, strides=2, activation=BNReLU)
            x = MaxPooling("pool1", x, 3, 2, padding="same")
            for stage, (filters, count) in enumerate(zip(self.channels, (4, 8, 4), strict=True), 2):
                for i in range(count):
                    with scope(f"stage{stage}"), scope(f"block{i}"):
                        strides = 2 if i == 0 else 1
                        if self.groups is None:
                            x = _unit_v2(x, filters, strides)
                        else:
                            x = _unit_v1(x, filters, strides, self.groups)
            x = Conv2D("conv5", x, 1024, 1, activation=BNReLU) if self.groups is None else x
        features = GlobalAvgPooling("gap", x)
        expose("features", features)
        return FullyConnected("linear", features, num_classes)


def _unit_v1(x: tf.Tensor, filters: int, strides: int, groups: int) -> tf.Tensor:
    # The first convolution of the network's first unit has too few channels for groups.
    first = groups if x.shape[-1] > 24 else 1
    y = Conv2D("conv1", x, filters // 4, 1, groups=first, activation=BNReLU)
    y = _depthwise("dconv", shuffle(y, groups), strides)
    added = filters if strides == 1 else filters - x.shape[-1]
    y = BatchNorm("conv2_bn", Conv2D("conv2", y, added, 1, groups=groups))
    if strides == 1:
        return tf.nn.relu(x + y)
    return tf.concat([AvgPooling("avgpool", x, 3, 2, padding="same"), tf.nn.relu(y)], -1)


def _unit_v2(x: tf.Tensor, filters: int, strides: int) -> tf.Tensor:
    shortcut, y = tf.split(x, 2, -1) if strides == 1 else (x, x)
    kept = shortcut.shape[-1]
    y = Conv2D("conv1", y, filters // 2, 1, activation=BNReLU)
    y = _depthwise("dconv", y, strides)
    y = Conv2D("conv2", y, filters - kept, 1, activation=BNReLU)
    if strides == 2:
        shortcut = _depthwise("shortcut_dconv", shortcut, strides)
        shortcut = Conv2D("shortcut_conv", shortcut, kept, 1, activation=BNReLU)
    return shuffle(tf.concat([shortcut, y], -1), 2)


def _depthwise(name: str, x: tf.Tensor, strides: int) -> tf.Tensor:
    return BatchNorm(f"{name}_bn", DepthwiseConv2D(name, x, 3, strides=strides))


def shuffle(x: tf.Tensor, groups: int) -> tf.Tensor:
    """Interleave the channels of the groups: [a0, a1, b0, b1] becomes [a0, b0, a1, b1]."""
    height, width, channels = x.shape[1:]
    x = tf.reshape(x, [-1, height, width, channels // groups, groups])
    return tf.reshape(tf.einsum("bhwcg->bhwgc", x), [-1, height, width, channels])


def _multiple(number: float, divisor: int) -> int:
    return math.ceil(number / divisor) * divisor


v1_half, v1, v2_half, v2 = (ShuffleNet(w, g) for g in (8, None) for w in (0.5, 1.0))
