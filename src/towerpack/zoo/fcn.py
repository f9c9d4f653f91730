"""Small fully convolutional network (after Long et al. 2015) from Lambda's demo suite.

The network has 1,384,652 parameters for 12 classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import tensorflow as tf

from towerpack.nn import BNReLU, Conv2D, Conv2DTranspose, argscope, expose

_DEPTH: Final = 4


def net(
    image: tf.Tensor, num_classes: int, *, width: int = 32, batch_norm: bool = False
) -> tf.Tensor:
    """Return logits [n, h, w, num_classes] of four convolutions and four transposed convolutions.

    Args:
        image, num_classes: Images [n, h, w, c] of any size, and number of classes.
        width: Filters of the first convolution. Each of the next three has twice as many.
        batch_norm: Whether to apply batch normalization before each ReLU.
    """
    with stages(batch_norm):
        *skipped, x = encoded(image, width)
        expose("features", x)
        for i, like in reversed(list(enumerate(skipped))):
            x = enlarged(f"up{i}", x, like, width << i)
    return enlarged("logits", x, image, num_classes)


def encoded(image: tf.Tensor, width: int) -> list[tf.Tensor]:
    """Return feature maps at strides 2, 4, 8 and 16.

    Args:
        image, width: See `net`.
    """
    maps = [image]
    for i in range(_DEPTH):
        maps.append(Conv2D(f"down{i}", maps[-1], width << i, strides=2))
    return maps[1:]


def enlarged(name: str, x: tf.Tensor, like: tf.Tensor, filters: int) -> tf.Tensor:
    """Double the size with a transposed 4x4 convolution, then crop to the size of `like`.

    Args:
        name: Name of the layer.
        x: Feature map [n, h, w, channels].
        like: Tensor with the height and width of the result.
        filters: Channels of the result.
    """
    x = Conv2DTranspose(name, x, filters, kernel_size=4, strides=2)
    known, wanted = x.shape[1:3], like.shape[1:3]
    if known.is_fully_defined() and known == wanted:
        return x  # a crop to the same size would copy
    # A 4x4 convolution with stride 2 always pads one row at the start, so crop only at the end.
    size: Any = tf.shape(like)
    return x[:, : size[1], : size[2]]


@contextmanager
def stages(batch_norm: bool) -> Iterator[None]:
    """Set the defaults of convolutions in the block: kernels of 4x4 and ReLU.

    Args:
        batch_norm: Whether to apply batch normalization before each ReLU.
    """
    activation = BNReLU if batch_norm else tf.nn.relu
    with (
        argscope([Conv2D, Conv2DTranspose], activation=activation),
        argscope(Conv2D, kernel_size=4),
    ):
        yield
