"""Two layers of LSTM over words: Lambda's `seq2label_basic`."""

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
    """LSTM (Hochreiter & Schmidhuber 1997), classified by its output at a text's last token.

    Args:
        tokens: int [n, time]. Zeros alone are a text without words.
        embedding_size: Length of a token's vector.
        units: Of each layer.
        dropout: Share of the vectors' and the features' values that training drops.
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
