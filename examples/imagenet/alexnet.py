"""AlexNet (Krizhevsky et al. 2012), with the variable names of Tensorpack's example.

    cd examples
    towerpack train imagenet/resnet50.yaml --allow-code model.network=imagenet.alexnet:net

Reached: the logits of Tensorpack's own network, see `tests/unit/zoo/test_tensorpack_weights.py`.
ImageNet training: not yet measured.
"""

from __future__ import annotations

import keras
import tensorflow as tf
from imagenet.pixels import standardized_bgr

from towerpack.nn import Conv2D, Dropout, FullyConnected, MaxPooling, argscope, expose


def net(image: tf.Tensor, num_classes: int) -> tf.Tensor:
    """Return logits [n, num_classes] for images of 224x224."""
    normal = keras.initializers.RandomNormal(stddev=0.01)
    x = tf.pad(image, [[0, 0], [2, 2], [2, 2], [0, 0]])  # 55x55 after the first convolution
    with argscope([Conv2D, FullyConnected], activation=tf.nn.relu):
        x = Conv2D("conv1", x, 96, 11, strides=4, padding="valid")
        x = MaxPooling("pool1", _normalize_locally(x), 3, 2)
        x = Conv2D("conv2", x, 256, 5, groups=2)
        x = MaxPooling("pool2", _normalize_locally(x), 3, 2)
        x = Conv2D("conv3", x, 384, 3)
        x = Conv2D("conv4", x, 384, 3, groups=2)
        x = Conv2D("conv5", x, 256, 3, groups=2)
        x = MaxPooling("pool3", x, 3, 2)
        with argscope(FullyConnected, kernel_initializer=normal):
            x = FullyConnected("fc6", x, 4096, bias_initializer="ones")
            x = FullyConnected("fc7", Dropout("drop6", x, rate=0.5), 4096)
    x = Dropout("drop7", x, rate=0.5)
    expose("features", x)
    return FullyConnected("fc8", x, num_classes, kernel_initializer=normal)


def _normalize_locally(x: tf.Tensor) -> tf.Tensor:
    return tf.nn.local_response_normalization(x, 2, bias=1.0, alpha=2e-5, beta=0.75)


net.normalize = standardized_bgr
