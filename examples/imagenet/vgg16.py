"""VGG-16 (Simonyan & Zisserman 2014), with the variable names of Tensorpack's example.

`net` has no normalization layers, `bn_net` has batch and `gn_net` group normalization (Wu & He
2018), as in that paper. The names are those of Caffe's VGG-16 too, so a file converted by
Tensorpack's `loadcaffe` fits `net`; its pixels are those of `centered_bgr`.

    cd examples
    towerpack train imagenet/resnet50.yaml --allow-code model.network=imagenet.vgg16:net

Reached: the logits of Tensorpack's own network, see `tests/unit/zoo/test_tensorpack_weights.py`.
ImageNet training: not yet measured.
"""

from __future__ import annotations

from functools import partial

import keras
import tensorflow as tf
from imagenet.pixels import standardized_bgr

from towerpack.nn import BatchNorm, Conv2D, Dropout, FullyConnected, MaxPooling, argscope, expose

STAGES = (64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512)


def net(image: tf.Tensor, num_classes: int, norm: str | None = None) -> tf.Tensor:
    """Return logits [n, num_classes].

    Args:
        image, num_classes: Images [n, h, w, 3] (224x224 in the paper), and number of classes.
        norm: Normalization after each convolution: None, 'bn' or 'gn'.
    """
    x = image
    for stage, widths in enumerate(STAGES, 1):
        for i, filters in enumerate(widths, 1):
            x = Conv2D(f"conv{stage}_{i}", x, filters, 3)
            if norm == "bn":
                x = BatchNorm(f"conv{stage}_{i}_bn", x)
            elif norm == "gn":
                layer = keras.layers.GroupNormalization
                x = layer(32, epsilon=1e-5, name=f"conv{stage}_{i}_gn")(x)
            x = tf.nn.relu(x)
        x = MaxPooling(f"pool{stage}", x, 2)
    narrow = keras.initializers.RandomNormal(stddev=0.001)
    with argscope(FullyConnected, activation=tf.nn.relu, kernel_initializer=narrow):
        x = Dropout("drop0", FullyConnected("fc6", x, 4096), rate=0.5)
        x = Dropout("drop1", FullyConnected("fc7", x, 4096), rate=0.5)
    expose("features", x)
    normal = keras.initializers.RandomNormal(stddev=0.01)
    return FullyConnected("fc8", x, num_classes, kernel_initializer=normal)


bn_net, gn_net = partial(net, norm="bn"), partial(net, norm="gn")
for _net in (net, bn_net, gn_net):
    _net.normalize = standardized_bgr
