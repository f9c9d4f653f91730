"""Cross-entropy of class numbers."""

import tensorflow as tf


def cross_entropy(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Return the cross-entropy of each label, in the shape of `labels`.

    Equals `tf.nn.sparse_softmax_cross_entropy_with_logits`, whose check of unknown shapes makes the
    host wait for a GPU.

    Args:
        labels: int64 or int32 [...]: class numbers from 0.
        logits: [..., classes].
    """
    rows = tf.reshape(logits, [-1, logits.shape[-1]])
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.reshape(labels, [-1]), rows)
    return tf.reshape(losses, tf.shape(labels))
