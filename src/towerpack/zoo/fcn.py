"""A small fully convolutional network (after Long et al. 2015), from Lambda's demo suite.

It has 1,384,652 parameters for 12 classes.
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
    """Four convolutions that halve the size, and four transposed ones that double it.

    Args:
        image: [n, h, w, c] of any size.
        width: Filters of the first convolution; each of the next three has twice as many.
        batch_norm: Normalize before each ReLU.
    """
    with stages(batch_norm):
        *skipped, x = encoded(image, width)
        expose("features", x)
        for i, like in reversed(list(enumerate(skipped))):
            x = enlarged(f"up{i}", x, like, width << i)
    return enlarged("logits", x, image, num_classes)


def encoded(image: tf.Tensor, width: int) -> list[tf.Tensor]:
    """Return maps at strides 2, 4, 8 and 16, by convolutions of 4x4."""
    found = [image]
    for i in range(_DEPTH):
        found.append(Conv2D(f"down{i}", found[-1], width << i, strides=2))
    return found[1:]


def enlarged(name: str, x: tf.Tensor, like: tf.Tensor, filters: int) -> tf.Tensor:
    """Double the size, then crop to the size of `like`.

    A convolution of 4x4 and stride 2 pads one row before, whatever the size: cropping the end
    leaves all pixels in their places.
    """
    x = Conv2DTranspose(name, x, filters, kernel_size=4, strides=2)
    known, wanted = x.shape[1:3], like.shape[1:3]
    if known.is_fully_defined() and known == wanted:
        return x  # A crop to the same size would cost copies.
    size: Any = tf.shape(like)
    return x[:, : size[1], : size[2]]


@contextmanager
def stages(batch_norm: bool) -> Iterator[None]:
    """Use convolutions of 4x4 with ReLU inside, after batch normalization if `batch_norm`."""
    activation = BNReLU if batch_norm else tf.nn.relu
    with (
        argscope([Conv2D, Conv2DTranspose], activation=activation),
        argscope(Conv2D, kernel_size=4),
    ):
        yield
