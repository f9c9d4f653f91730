"""Inception with batch normalization (Ioffe & Szegedy 2015), named as in Tensorpack's example.

    cd examples
    towerpack train imagenet/resnet50.yaml --allow-code model.network=imagenet.inception_bn:net

Reached: the logits of Tensorpack's own network, see `tests/unit/zoo/test_tensorpack_weights.py`.
ImageNet training: not yet measured.
"""

from __future__ import annotations

import tensorflow as tf
from imagenet.pixels import centered_bgr

from towerpack.nn import (
    AvgPooling,
    BNReLU,
    Conv2D,
    FullyConnected,
    GlobalAvgPooling,
    MaxPooling,
    argscope,
    expose,
    scope,
)

# Filters: 1x1; 3x3 reduced, 3x3; double 3x3 reduced, double 3x3; projection of the pooled input.
# A block without 1x1 halves the sides and passes the pooled input through.
BLOCKS = {
    "incep3a": (64, 64, 64, 64, 96, 32, AvgPooling),
    "incep3b": (64, 64, 96, 64, 96, 64, AvgPooling),
    "incep3c": (0, 128, 160, 64, 96, 0, MaxPooling),
    "incep4a": (224, 64, 96, 96, 128, 128, AvgPooling),
    "incep4b": (192, 96, 128, 96, 128, 128, AvgPooling),
    "incep4c": (160, 128, 160, 128, 160, 128, AvgPooling),
    "incep4d": (96, 128, 192, 160, 192, 128, AvgPooling),
    "incep4e": (0, 128, 192, 192, 256, 0, MaxPooling),
    "incep5a": (352, 192, 320, 160, 224, 128, AvgPooling),
    "incep5b": (352, 192, 320, 192, 224, 128, MaxPooling),
}
HEADS = {"incep3c": "loss1", "incep4e": "loss2"}


def net(image: tf.Tensor, num_classes: int) -> tf.Tensor:
    """Return logits [n, num_classes], without the classifiers in the middle."""
    return all_logits(image, num_classes, heads={})[-1]


def all_logits(image: tf.Tensor, num_classes: int, heads: dict[str, str] = HEADS) -> list:
    """Return logits of the two classifiers in the middle and of the last one.

    Tensorpack trains on the sum of their cross-entropies, weighted by 0.3, 0.3 and 1.
    """
    results = []
    with argscope(Conv2D, activation=BNReLU, use_bias=False):
        x = Conv2D("conv0", image / 128, 64, 7, strides=2)
        x = MaxPooling("pool0", x, 3, 2, padding="same")
        x = Conv2D("conv2", Conv2D("conv1", x, 64, 1), 192, 3)
        x = MaxPooling("pool2", x, 3, 2, padding="same")
        for name, sizes in BLOCKS.items():
            with scope(name):
                x = _inception(x, *sizes)
            if name in heads:
                results.append(_head(heads[name], x, num_classes))
    features = GlobalAvgPooling("gap", x)
    expose("features", features)
    return [*results, FullyConnected("linear", features, num_classes)]


def _inception(x, single, reduced, triple, double_reduced, double, projected, pooling):
    strides = 1 if single else 2
    branches = [Conv2D("conv1x1", x, single, 1)] if single else []
    y = Conv2D("conv3x3r", x, reduced, 1)
    branches.append(Conv2D("conv3x3", y, triple, 3, strides=strides))
    y = Conv2D("conv233a", Conv2D("conv233r", x, double_reduced, 1), double, 3)
    branches.append(Conv2D("conv233b", y, double, 3, strides=strides))
    y = pooling("pool", x, 3, strides, padding="same")
    branches.append(Conv2D("poolproj", y, projected, 1) if projected else y)
    return tf.concat(branches, -1)


def _head(name: str, x: tf.Tensor, num_classes: int) -> tf.Tensor:
    x = Conv2D(f"{name}conv", x, 128, 1)
    x = FullyConnected(f"{name}fc", x, 1024, activation=tf.nn.relu)
    return FullyConnected(f"{name}logit", x, num_classes)


net.normalize = centered_bgr
