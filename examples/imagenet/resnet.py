"""Residual networks for ImageNet, with the variable names of Tensorpack's ResNet examples.

`resnet18` to `resnet152` put the strides into the 3x3 convolutions ("version 1.5", Goyal et al.
2017), `caffe_resnet50` into the first 1x1 convolutions, with the padding of Caffe (He et al. 2016).
`preact_…` normalizes before each convolution (He et al. 2016, "Identity mappings"), `se_resnet50`
weights the channels (Hu et al. 2018), and `resnext50` has 32 groups (Xie et al. 2017).
`SmartInit('ImageNet-ResNet50.npz')` loads Tensorpack's published weights.

    cd examples
    towerpack train imagenet/resnet50.yaml --allow-code data.path=ILSVRC

Reached: the logits of Tensorpack's own networks, see `tests/unit/zoo/test_tensorpack_weights.py`.
ResNet-18 on scikit-learn's digits: 99.4 % correct after 6 epochs. ImageNet: not yet measured.
"""

from __future__ import annotations

from functools import partial

import keras
import tensorflow as tf
from imagenet.pixels import centered_bgr, standardized_bgr

from towerpack.nn import (
    BatchNorm,
    BNReLU,
    Conv2D,
    FullyConnected,
    GlobalAvgPooling,
    MaxPooling,
    argscope,
    expose,
    scope,
)

STAGES = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3),
          152: (3, 8, 36, 3)}  # fmt: skip


class ResNet:
    """Network `net(image, num_classes)` of recipes, which returns logits [n, num_classes].

    Args:
        depth: Number of layers: 18, 34, 50, 101 or 152. The first two have blocks of two
            convolutions, the others bottlenecks of three.
        mode: 'v1.5', 'caffe', 'preact', 'se' or 'resnext'.
    """

    def __init__(self, depth: int, mode: str = "v1.5") -> None:
        self.depth, self.mode = depth, mode
        self.normalize = centered_bgr if mode == "caffe" else standardized_bgr

    def __call__(self, image: tf.Tensor, num_classes: int) -> tf.Tensor:
        fan_out = keras.initializers.VarianceScaling(2.0, "fan_out", "untruncated_normal")
        is_caffe = self.mode == "caffe"
        x = tf.pad(image, [[0, 0], [3, 2], [3, 2], [0, 0]]) if is_caffe else image
        padding = "valid" if is_caffe else "same"
        with argscope(Conv2D, use_bias=False, kernel_initializer=fan_out):
            x = Conv2D("conv0", x, 64, 7, strides=2, padding=padding, activation=BNReLU)
            x = MaxPooling("pool0", x, 3, 2, padding="same")
            for group, count in enumerate(STAGES[self.depth]):
                with scope(f"group{group}"):
                    for i in range(count):
                        with scope(f"block{i}"):
                            strides = 2 if group > 0 and i == 0 else 1
                            x = self._block(x, 64 * 2**group, strides, is_first=i == 0)
                    x = BNReLU("bnlast", x) if self.mode == "preact" else x
        features = GlobalAvgPooling("gap", x)
        expose("features", features)
        normal = keras.initializers.RandomNormal(stddev=0.01)
        return FullyConnected("linear", features, num_classes, kernel_initializer=normal)

    def _block(self, x: tf.Tensor, filters: int, strides: int, *, is_first: bool) -> tf.Tensor:
        shortcut, is_preact = x, self.mode == "preact"
        if is_preact and not is_first:
            x = BNReLU("preact", x)
        # The last normalization starts at 0, so that a block starts as the identity.
        last = None if is_preact else partial(_norm, gamma_initializer="zeros")
        if self.depth < 50:
            x = Conv2D("conv1", x, filters, 3, strides=strides, activation=BNReLU)
            x = Conv2D("conv2", x, filters, 3, activation=last)
        else:
            width, groups = (filters * 2, 32) if self.mode == "resnext" else (filters, 1)
            first, second = (strides, 1) if self.mode == "caffe" else (1, strides)
            x = Conv2D("conv1", x, width, 1, strides=first, activation=BNReLU)
            x = Conv2D("conv2", x, width, 3, strides=second, groups=groups, activation=BNReLU)
            x = Conv2D("conv3", x, filters * 4, 1, activation=last)
            x = _squeeze_and_excite(x, filters) if self.mode == "se" else x
        if shortcut.shape[-1] != x.shape[-1]:
            norm = None if is_preact else _norm
            shortcut = Conv2D(
                "convshortcut", shortcut, x.shape[-1], 1, strides=strides, activation=norm
            )
        return x + shortcut if is_preact else tf.nn.relu(x + shortcut)


def _norm(x: tf.Tensor, gamma_initializer: str = "ones") -> tf.Tensor:
    return BatchNorm("bn", x, gamma_initializer=gamma_initializer)


def _squeeze_and_excite(x: tf.Tensor, filters: int) -> tf.Tensor:
    weights = FullyConnected("fc1", GlobalAvgPooling("gap", x), filters // 4, activation="relu")
    weights = FullyConnected("fc2", weights, filters * 4, activation="sigmoid")
    return x * weights[:, tf.newaxis, tf.newaxis]


resnet18, resnet34, resnet50, resnet101, resnet152 = map(ResNet, STAGES)
caffe_resnet50, preact_resnet50, se_resnet50, resnext50 = (
    ResNet(50, mode) for mode in ("caffe", "preact", "se", "resnext")
)
preact_resnet18 = ResNet(18, "preact")
