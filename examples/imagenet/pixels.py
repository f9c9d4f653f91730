"""Pixel normalizations of Tensorpack's ImageNet networks, which see blue, green, red.

The attribute `normalize` of a network replaces the normalization of `data.augmenter`.
"""

from __future__ import annotations

import tensorflow as tf

MEAN_RGB, DEVIATION_RGB = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def standardized_bgr(image: tf.Tensor) -> tf.Tensor:
    """Normalize each channel to mean 0 and deviation 1 over ImageNet; uint8 RGB to float32 BGR."""
    unit = tf.cast(image, tf.float32) / 255
    return ((unit - tf.constant(MEAN_RGB)) / tf.constant(DEVIATION_RGB))[..., ::-1]


def centered_bgr(image: tf.Tensor) -> tf.Tensor:
    """Subtract the mean color of ImageNet; uint8 RGB to float32 BGR."""
    return (tf.cast(image, tf.float32) - tf.constant([123.68, 116.78, 103.94]))[..., ::-1]
