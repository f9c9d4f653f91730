import math

import tensorflow as tf


def print_stat(x: tf.Tensor, message: str | None = None) -> tf.Tensor:
    """Return `x`, and print its shape, mean, RMS and first values whenever it is computed.

    Args:
        x: Tensor of numbers.
        message: Text to print first; None for the tensor's description.
    """
    real = tf.cast(x, tf.float32)
    numbers = "shape", tf.shape(x), "mean", tf.reduce_mean(real), "rms", rms(real), x
    printed = tf.print(message or str(x), *numbers)
    with tf.control_dependencies([] if printed is None else [printed]):  # None: eager.
        return tf.identity(x)


def rms(x: tf.Tensor, name: str | None = None) -> tf.Tensor:
    """Return the root mean square of all elements of `x`, as a scalar.

    Args:
        x: Tensor of floats.
        name: Name of the result in the graph.
    """
    return tf.sqrt(tf.reduce_mean(tf.square(x)), name=name)


def psnr(
    prediction: tf.Tensor, ground_truth: tf.Tensor, maxp: float = 1.0, name: str = "psnr"
) -> tf.Tensor:
    """Return the peak signal-to-noise ratio of a batch in dB: scalar.

    Args:
        prediction, ground_truth: Tensors of the same shape.
        maxp: Largest value of a pixel.
        name: Name of the result in the graph.
    """
    prediction.shape.assert_is_compatible_with(ground_truth.shape)
    ratio = maxp**2 / tf.reduce_mean(tf.math.squared_difference(prediction, ground_truth))
    return tf.multiply(tf.math.log(ratio), 10 / math.log(10), name=name)
