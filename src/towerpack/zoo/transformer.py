"""Small causal transformer language model. Its state is a cache of keys and values."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from towerpack._core.errors import ConfigError
from towerpack.nn import Dropout, Embedding, FullyConnected, LayerNorm, scope
from towerpack.zoo.language_model import LanguageModel, State


def net(
    token: tf.Tensor,
    vocab_size: int,
    state: State,
    *,
    width: int = 192,
    layers: int = 4,
    heads: int = 6,
    context: int = 128,
    dropout: float = 0.0,
) -> tuple[tf.Tensor, State]:
    """Predict the next tokens with blocks of GPT-2 (Radford et al. 2019) and rotary positions.

    Positions rotate queries and keys (Su et al. 2021). Every layer attends to the last `context`
    tokens. The state holds keys and values of earlier calls, which get no gradient (Dai et al.
    2019).

    Args:
        token, vocab_size: Tokens int32 [n, time], and number of different tokens.
        state: `keys` and `values`, float32 [n, layers, context, width], and `count`, int32 [n], the
            number of cached tokens.
        width: Length of a token's vector, a multiple of 2 * `heads`.
        layers, heads: Number of blocks, and of attention heads.
        context: Number of tokens that a layer attends to, including the current token.
        dropout: Dropout rate after the embedding and in each branch.

    Returns:
        Logits [n, time, vocab_size], and the state after these tokens.

    Raises:
        ConfigError: `width` is not a multiple of 2 * `heads`.
    """
    if width % (2 * heads):
        raise ConfigError(f"width must be a multiple of 2 * heads={2 * heads}, got {width}.")
    n, time = tf.shape(token)[0], tf.shape(token)[1]
    flat = tf.reshape(token, [-1])
    x = Embedding("embedding", flat, vocab_size, width, embeddings_initializer=_SMALL)
    x = _dropped("dropout", x, dropout)
    seen = _seen(context, time, state["count"])
    keys, values = [], []
    for i in range(layers):
        with scope(f"block{i}"):
            qkv = _full("qkv", LayerNorm("norm0", x), 3 * width)
            q, k, v = tf.split(tf.reshape(qkv, [n, time, 3 * width]), 3, 2)
            k, v = (
                tf.concat([tf.cast(tf.stop_gradient(state[name][:, i]), new.dtype), new], 1)
                for name, new in (("keys", k), ("values", v))
            )
            mixed = _attention(q, k, v, seen, heads, context)
            x += _dropped("dropout0", _full("out", tf.reshape(mixed, [-1, width]), width), dropout)
            hidden = tf.nn.gelu(_full("mlp0", LayerNorm("norm1", x), 4 * width))
            x += _dropped("dropout1", _full("mlp1", hidden, width), dropout)
        keys.append(k[:, -context:])
        values.append(v[:, -context:])
    logits = _full("logits", LayerNorm("norm", x), vocab_size)
    return tf.reshape(logits, [n, time, vocab_size]), {
        "keys": tf.cast(tf.stack(keys, 1), tf.float32),
        "values": tf.cast(tf.stack(values, 1), tf.float32),
        "count": tf.minimum(state["count"] + time, context),
    }


def zero_state(
    rows: Any, *, width: int = 192, layers: int = 4, context: int = 128, **_: Any
) -> State:
    """Return the state before a text, with an empty cache.

    Args:
        rows: Number of texts.
        width, layers, context: See `net`.
    """
    nothing = tf.zeros([rows, layers, context, width])
    return {"keys": nothing, "values": nothing, "count": tf.zeros([rows], tf.int32)}


NETWORK = LanguageModel(net, zero_state)
_SMALL = keras.initializers.RandomNormal(stddev=0.02)


def _full(name: str, x: tf.Tensor, units: int) -> tf.Tensor:
    return FullyConnected(name, x, units, kernel_initializer=_SMALL)


def _dropped(name: str, x: tf.Tensor, rate: float) -> tf.Tensor:
    return Dropout(name, x, rate) if rate else x


def _seen(context: int, time: Any, count: tf.Tensor) -> tf.Tensor:
    """Return the causal attention mask, bool [n, 1, time, context + time]."""
    query = tf.range(context, context + time)[:, None]
    key = tf.range(context + time)
    near = (key <= query) & (key > query - context)
    filled = key >= context - count[:, None]
    return (near & filled[:, None, :])[:, None]


def _attention(
    q: tf.Tensor, k: tf.Tensor, v: tf.Tensor, seen: tf.Tensor, heads: int, context: int
) -> tf.Tensor:
    """Return scaled dot-product attention (Vaswani et al. 2017), [n, time, width]."""
    width: Any = q.shape[-1]
    size = width // heads
    q, k, v = (tf.reshape(x, [tf.shape(x)[0], -1, heads, size]) for x in (q, k, v))
    q, k = _rotated(q, context), _rotated(k, 0)
    weights = tf.cast(tf.einsum("nqhc,nkhc->nhqk", q, k), tf.float32) * size**-0.5
    weights = tf.nn.softmax(tf.where(seen, weights, weights.dtype.min))
    mixed = tf.einsum("nhqk,nkhc->nqhc", tf.cast(weights, v.dtype), v)
    return tf.reshape(mixed, [tf.shape(mixed)[0], -1, width])


def _rotated(x: tf.Tensor, first: int) -> tf.Tensor:
    """Apply rotary position embedding to [n, time, heads, size], from the position `first`."""
    size: Any = x.shape[-1]
    half = size // 2
    position = tf.range(first, first + tf.shape(x)[1])
    rate = 10000.0 ** (-tf.range(half, dtype=tf.float32) / half)
    angle = (tf.cast(position, tf.float32)[:, None] * rate)[:, None]
    sine, cosine = tf.cast(tf.sin(angle), x.dtype), tf.cast(tf.cos(angle), x.dtype)
    a, b = tf.split(x, 2, -1)
    return tf.concat([a * cosine - b * sine, a * sine + b * cosine], -1)
