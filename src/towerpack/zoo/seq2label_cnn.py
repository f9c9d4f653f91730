"""Convolutional text classifier with global max pooling (Kim 2014)."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from towerpack.nn import Conv1D, Dropout, Embedding, FullyConnected, expose


def net(
    tokens: tf.Tensor,
    num_classes: int,
    *,
    vocab_size: int,
    embedding_size: int = 300,
    filters: int = 100,
    widths: Sequence[int] = (3, 4, 5),
    dropout: float = 0.5,
) -> tf.Tensor:
    """Return logits [n, num_classes] of CNN-rand (Kim 2014), or CNN-non-static with `data.vectors`.

    Convolution windows extend beyond both ends of a text, so padding has no effect.

    Args:
        tokens: int [n, time], padded with 0. A row of zeros is an empty text.
        num_classes, vocab_size: Number of classes, and number of tokens.
        embedding_size: Length of a token's vector.
        filters, widths: Number of filters of each width, and kernel sizes in tokens.
        dropout: Dropout rate of the features.
    """
    is_token = tokens != 0
    length = tf.math.count_nonzero(is_token, axis=1, dtype=tf.int32)
    x = Embedding("embedding", tokens, vocab_size, embedding_size)
    x *= tf.cast(is_token, x.dtype)[:, :, None]
    pooled = []
    for width in widths:
        wide = tf.pad(x, [[0, 0], [width - 1, width - 1], [0, 0]])
        y = Conv1D(f"conv{width}", wide, filters, width, padding="valid", activation=tf.nn.relu)
        last = tf.where(length > 0, length + width - 1, 0)
        inside = tf.sequence_mask(last, tf.shape(y)[1], dtype=y.dtype)
        pooled.append(tf.reduce_max(y * inside[:, :, None], axis=1))
    features = tf.concat(pooled, axis=1)
    expose("features", features)
    return FullyConnected("fc", Dropout("dropout", features, dropout), num_classes)
