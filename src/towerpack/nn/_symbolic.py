"""Numbers of tensors."""

import math

import tensorflow as tf


def print_stat(x: tf.Tensor, message: str | None = None) -> tf.Tensor:
    """Return `x`, and print its shape, mean, rms and some numbers whenever it is computed."""
    real = tf.cast(x, tf.float32)
    numbers = "shape", tf.shape(x), "mean", tf.reduce_mean(real), "rms", rms(real), x
    shown = tf.print(message or str(x), *numbers)
    with tf.control_dependencies([] if shown is None else [shown]):  # None: it runs eagerly.
        return tf.identity(x)


def rms(x: tf.Tensor, name: str | None = None) -> tf.Tensor:
    """Root of the mean square: scalar."""
    return tf.sqrt(tf.reduce_mean(tf.square(x)), name=name)


def psnr(
    prediction: tf.Tensor, ground_truth: tf.Tensor, maxp: float = 1.0, name: str = "psnr"
) -> tf.Tensor:
    """Peak signal-to-noise ratio in dB of a batch: scalar. `maxp`: the largest value of a pixel."""
    prediction.shape.assert_is_compatible_with(ground_truth.shape)
    ratio = maxp**2 / tf.reduce_mean(tf.math.squared_difference(prediction, ground_truth))
    return tf.multiply(tf.math.log(ratio), 10 / math.log(10), name=name)
