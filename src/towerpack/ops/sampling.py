"""Sampling of classes from logits, with random numbers that depend on positions."""

from typing import Any, Final, cast

import tensorflow as tf

_BLOCK: Final = 64
_LEAST_TEMPERATURE: Final = 1e-6


def choose(
    logits: tf.Tensor, u: tf.Tensor, temperature: Any, top_k: int = 0, top_p: float = 1.0
) -> tf.Tensor:
    """Draw classes [n], int32, by inverse transform sampling.

    Args:
        logits: [n, classes].
        u: Uniform random numbers, float32 [n], in [0, 1).
        temperature: Divisor of the logits; 0 chooses the most likely class.
        top_k: Choose among this many most likely classes; 0 for all.
        top_p: Choose among the most likely classes with this total probability (Holtzman et al.
            2020).
    """
    logits = tf.cast(logits, tf.float32)
    size: Any = logits.shape[1]
    scale = tf.maximum(temperature, _LEAST_TEMPERATURE)
    if not top_k and top_p >= 1:  # All classes, in any order
        scaled = (logits - tf.reduce_max(logits, 1, keepdims=True)) / scale
        return _reached(tf.cumsum(tf.nn.softmax(scaled), 1), u)
    best, order = tf.math.top_k(logits, min(top_k or size, size))
    # The largest logit becomes 0, which stays finite at any temperature.
    reached = tf.cumsum(tf.nn.softmax((best - best[:, :1]) / scale), 1)
    # Keep the classes before which the total probability is below top_p.
    if top_p < 1:
        count = 1 + tf.reduce_sum(tf.cast(reached < top_p, tf.int32), 1)
        last = tf.minimum(count, tf.shape(reached)[1]) - 1
        reached = tf.minimum(reached, tf.gather(reached, last, batch_dims=1)[:, None])
    return tf.gather(order, _reached(reached, u), batch_dims=1)


def _reached(sums: tf.Tensor, u: tf.Tensor) -> tf.Tensor:
    """Return the first class whose cumulative probability exceeds the fraction u of the total."""
    return tf.reduce_sum(tf.cast(sums[:, :-1] <= (u * sums[:, -1])[:, None], tf.int32), 1)


def uniform_at(seed: Any, start: tf.Tensor, length: Any) -> tf.Tensor:
    """Draw uniform numbers, float32 [n, length], that depend only on seed, row and position.

    Args:
        seed: int32 scalar.
        start: Position of the first number of each row, int32 [n].
        length: Number of random numbers per row.
    """
    fold: Any = cast("Any", tf.random).experimental.stateless_fold_in
    rows, blocks = tf.shape(start)[0], length // _BLOCK + 2
    row = tf.repeat(tf.range(rows), blocks)
    block = tf.reshape(start[:, None] // _BLOCK + tf.range(blocks), [-1])

    def draw(place: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        key = fold(fold(tf.stack([tf.cast(seed, tf.int32), 0]), place[0]), place[1])
        return tf.random.stateless_uniform([_BLOCK], key)

    some = tf.map_fn(draw, (row, block), fn_output_signature=tf.float32)
    place = tf.math.floormod(start[:, None], _BLOCK) + tf.range(length)
    return tf.gather(tf.reshape(some, [rows, -1]), place, batch_dims=1)
