"""LSTM text classifier `seq2label_basic` from Lambda's demo suite."""

from __future__ import annotations

import tensorflow as tf

from towerpack.nn import LSTM, Dropout, Embedding, FullyConnected, expose


def net(
    tokens: tf.Tensor,
    num_classes: int,
    *,
    vocab_size: int,
    embedding_size: int = 200,
    units: int = 128,
    layers: int = 2,
    dropout: float = 0.0,
) -> tf.Tensor:
    """Return logits [n, num_classes], computed from the LSTM output at each text's last token.

    Args:
        tokens: int [n, time], padded with 0. A row of zeros is an empty text.
        num_classes, vocab_size: Number of classes, and number of tokens.
        embedding_size: Length of a token's vector.
        units, layers: Units of each layer, and number of layers.
        dropout: Dropout rate of token vectors and features.
    """
    length = tf.math.count_nonzero(tokens, axis=1)
    x = Embedding("embedding", tokens, vocab_size, embedding_size)
    x = Dropout("dropout", x, dropout) if dropout else x
    for i in range(layers):
        x = LSTM(f"lstm{i}", x, units, return_sequences=True)
    features = tf.gather(x, tf.maximum(length - 1, 0), batch_dims=1)
    features *= tf.cast(length > 0, x.dtype)[:, None]
    features = Dropout("dropout_out", features, dropout) if dropout else features
    expose("features", features)
    return FullyConnected("fc", features, num_classes)
