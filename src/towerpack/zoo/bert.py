"""BERT (Devlin et al. 2018), with the same variable names as Google's checkpoints."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import tensorflow as tf

from towerpack.nn import Dropout, Embedding, FullyConnected, LayerNorm, expose, scope

_EPSILON: Final = 1e-12
_STDDEV: Final = 0.02
# Ordered regular expressions that convert variable names of Hugging Face to Google's names.
_NAMES: Final = (
    (r"^(?!bert/|cls/|classifier/)", "bert/"),
    (r"/encoder/layer/(\d+)/", r"/encoder/layer_\1/"),
    (r"_embeddings/weight$", "_embeddings"),
    (r"LayerNorm/weight$", "LayerNorm/gamma"),
    (r"LayerNorm/bias$", "LayerNorm/beta"),
    (r"/weight$", "/kernel"),
)


def net(
    tokens: tf.Tensor,
    num_classes: int,
    *,
    vocab_size: int,
    layers: int = 12,
    hidden_size: int = 768,
    num_heads: int = 12,
    intermediate_size: int | None = None,
    max_positions: int = 512,
    dropout: float = 0.1,
) -> tf.Tensor:
    """Return logits [n, num_classes], computed from the pooled vector of the first token.

    Args:
        tokens: int [n, time], from `[CLS]` to `[SEP]`, padded with 0, all in the first segment.
        num_classes, vocab_size: Number of classes, and number of tokens.
        layers, num_heads: Number of encoder layers, and of attention heads (12 in BERT-base).
        hidden_size: Length of a token's vector, a multiple of `num_heads`.
        intermediate_size: Units of the inner dense layers (default: four times `hidden_size`).
        max_positions: Maximum number of tokens in a text.
        dropout: Dropout rate.
    """
    with scope("bert"):
        features = encode(
            tokens,
            vocab_size=vocab_size,
            layers=layers,
            hidden_size=hidden_size,
            num_heads=num_heads,
            intermediate_size=intermediate_size or 4 * hidden_size,
            max_positions=max_positions,
            dropout=dropout,
        )
        features = _dense("pooler/dense", features[:, 0], hidden_size, activation=tf.tanh)
    expose("features", features)
    return _dense("classifier", Dropout("dropout", features, dropout), num_classes)


def encode(
    tokens: tf.Tensor,
    *,
    vocab_size: int,
    layers: int,
    hidden_size: int,
    num_heads: int,
    intermediate_size: int,
    max_positions: int,
    dropout: float,
) -> tf.Tensor:
    """Return contextual vectors of the tokens, [n, time, hidden_size].

    Args:
        tokens, vocab_size, layers, num_heads, hidden_size: See `net`.
        intermediate_size, max_positions, dropout: See `net`.
    """
    time = tf.shape(tokens)[1]
    normal: Any = tf.keras.initializers.TruncatedNormal(stddev=_STDDEV)
    with scope("embeddings"):
        kinds = (
            ("word", tokens, vocab_size),
            ("position", tf.range(time)[None], max_positions),
            ("token_type", tf.zeros_like(tokens), 2),
        )
        shape = [tf.shape(tokens)[0], time, hidden_size]
        x = tf.add_n(
            [
                tf.broadcast_to(Embedding(f"{k}_embeddings", ids, n, hidden_size, normal), shape)
                for k, ids, n in kinds
            ]
        )
        x = Dropout("dropout", LayerNorm("LayerNorm", x, epsilon=_EPSILON), dropout)
    hidden = tf.where(tokens == 0, tf.constant(-1e9, x.dtype), 0)[:, None, None, :]
    for i in range(layers):
        with scope(f"encoder/layer_{i}"):
            y = _attention(x, hidden, num_heads, dropout)
            y = _dense("attention/output/dense", y, hidden_size)
            x = _added("attention/output", x, y, dropout)
            y = _dense("intermediate/dense", x, intermediate_size, activation=tf.nn.gelu)
            x = _added("output", x, _dense("output/dense", y, hidden_size), dropout)
    return x


def named(weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Rename weights to the variable names of this network.

    Accepts weights of Google's checkpoints, Hugging Face's files, and Towerpack's runs.

    Args:
        weights: Arrays by name.
    """
    return dict(_converted(name, array) for name, array in weights.items())


def _converted(name: str, array: np.ndarray) -> tuple[str, np.ndarray]:
    if "." in name:  # Names of PyTorch contain dots, and kernels have the shape [out, in].
        transpose = name.endswith(".weight") and "embeddings" not in name and array.ndim == 2
        array, name = np.asarray(array), name.replace(".", "/")
        array = array.T if transpose else array
        for pattern, new in _NAMES:
            name = re.sub(pattern, new, name)
    return f"{name}/embeddings" if name.endswith("_embeddings") else name, array


def _dense(name: str, x: tf.Tensor, units: int, activation: Any = None) -> tf.Tensor:
    shape = tf.shape(x)
    flat = tf.reshape(x, [-1, x.shape[-1]])
    normal: Any = tf.keras.initializers.TruncatedNormal(stddev=_STDDEV)
    y = FullyConnected(name, flat, units, activation=activation, kernel_initializer=normal)
    y = tf.reshape(y, tf.concat([shape[:-1], [units]], 0))
    return tf.ensure_shape(y, [*x.shape[:-1], units])


def _attention(x: tf.Tensor, hidden: tf.Tensor, num_heads: int, dropout: float) -> tf.Tensor:
    size = int(x.shape[-1] or 0) // num_heads
    batch, time = tf.unstack(tf.shape(x))[:2]

    def heads(name: str) -> tf.Tensor:
        y = _dense(f"attention/self/{name}", x, num_heads * size)
        return tf.transpose(tf.reshape(y, [batch, time, num_heads, size]), [0, 2, 1, 3])

    query, key, value = heads("query"), heads("key"), heads("value")
    scores = tf.matmul(query, key, transpose_b=True) / size**0.5 + hidden
    shares = Dropout("attention/self/dropout", tf.nn.softmax(scores), dropout)
    mixed = tf.transpose(tf.matmul(shares, value), [0, 2, 1, 3])
    return tf.ensure_shape(tf.reshape(mixed, [batch, time, num_heads * size]), x.shape)


def _added(name: str, x: tf.Tensor, y: tf.Tensor, dropout: float) -> tf.Tensor:
    y = x + Dropout(f"{name}/dropout", y, dropout)
    return LayerNorm(f"{name}/LayerNorm", y, epsilon=_EPSILON)
