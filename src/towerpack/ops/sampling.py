"""Sampling of classes from logits, by random numbers that depend on their positions."""

from __future__ import annotations

from typing import Any, Final, cast

import tensorflow as tf

_BLOCK: Final = 64
_LEAST_TEMPERATURE: Final = 1e-6


def choose(
    logits: tf.Tensor, u: tf.Tensor, temperature: Any, top_k: int = 0, top_p: float = 1.0
) -> tf.Tensor:
    """Draw classes, int32 [n], by the inverse of the distribution function.

    Args:
        logits: [n, classes].
        u: float32 [n], from 0 to 1.
        temperature: Divisor of the logits; 0 chooses the most likely class.
        top_k: Choose among this many of the most likely classes; 0: all.
        top_p: Choose among the classes with this probability together (Holtzman et al. 2020).
    """
    logits = tf.cast(logits, tf.float32)
    size: Any = logits.shape[1]
    scale = tf.maximum(temperature, _LEAST_TEMPERATURE)
    if not top_k and top_p >= 1:  # all classes, in any order
        scaled = (logits - tf.reduce_max(logits, 1, keepdims=True)) / scale
        return _reached(tf.cumsum(tf.nn.softmax(scaled), 1), u)
    best, order = tf.math.top_k(logits, min(top_k or size, size))
    # The best is 0, which no small temperature makes infinite.
    reached = tf.cumsum(tf.nn.softmax((best - best[:, :1]) / scale), 1)
    # Of the classes that come before, those that do not reach top_p without it.
    if top_p < 1:
        count = 1 + tf.reduce_sum(tf.cast(reached < top_p, tf.int32), 1)
        last = tf.minimum(count, tf.shape(reached)[1]) - 1
        reached = tf.minimum(reached, tf.gather(reached, last, batch_dims=1)[:, None])
    return tf.gather(order, _reached(reached, u), batch_dims=1)


def _reached(sums: tf.Tensor, u: tf.Tensor) -> tf.Tensor:
    """Return the first class whose sum of probabilities is above a share u of the last sum."""
    return tf.reduce_sum(tf.cast(sums[:, :-1] <= (u * sums[:, -1])[:, None], tf.int32), 1)


def uniform_at(seed: Any, start: tf.Tensor, length: Any) -> tf.Tensor:
    """Return random numbers, float32 [n, length], each a function of seed, row and position.

    Args:
        seed: int32 scalar.
        start: Position of the first number of each row: int32 [n].
        length: Numbers in a row.
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
