"""Words and word pieces as TensorFlow operations, with the results of `tokenizers`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import tensorflow as tf

_AS_IT_IS: Final = "\0"
_LONGEST_WORD: Final = 100
"""Characters; a longer one is unknown, as in BERT."""


def character_table(characters: Mapping[str, str]) -> Any:
    """Return a table for `words_of`: characters and their replacements; spaces divide words."""
    keys, values = tf.constant(list(characters)), tf.constant(list(characters.values()))
    made = tf.lookup.KeyValueTensorInitializer(keys, values)
    return tf.lookup.StaticHashTable(made, _AS_IT_IS)


def token_table(tokens: Sequence[str], unknown: str = "[UNK]") -> Any:
    """Return a table from tokens to their numbers; others have that of `unknown`."""
    numbers = tf.range(len(tokens), dtype=tf.int64)
    made = tf.lookup.KeyValueTensorInitializer(tf.constant(list(tokens)), numbers)
    return tf.lookup.StaticHashTable(made, tokens.index(unknown))


def words_of(text: tf.Tensor, characters: Any) -> tf.RaggedTensor:
    """Split texts [n] in UTF-8 into words, [n, (words)]. Invalid bytes count as U+FFFD."""
    text = tf.strings.unicode_transcode(text, "UTF-8", "UTF-8")
    split = tf.strings.unicode_split(text, "UTF-8")

    def changed(found: tf.Tensor) -> tf.Tensor:
        new = characters.lookup(found)
        return tf.where(new == _AS_IT_IS, found, new)

    return tf.strings.split(tf.strings.reduce_join(tf.ragged.map_flat_values(changed, split), 1))


def numbers_of(words: tf.RaggedTensor, tokens: Any) -> tf.RaggedTensor:
    """Return the numbers of whole words: int64 [n, (words)]; `tokens` is a `token_table`."""
    return tf.ragged.map_flat_values(tokens.lookup, words)


def word_pieces(words: tf.RaggedTensor, tokens: Any, longest: int) -> tf.RaggedTensor:
    """Return the numbers of word pieces, the longest that fits first: int64 [n, (pieces)].

    Wu et al. 2016, section 4.1, as in BERT: later pieces begin with `##`; a word that does not
    consist of tokens is unknown.

    Args:
        words: Strings [n, (words)].
        tokens: Of `token_table`.
        longest: Characters of the longest token.
    """
    word, place = tf.unique(words.flat_values)
    size = tf.strings.length(word, "UTF8_CHAR")
    unknown = tokens.default_value
    ended, nothing_fits = (tf.constant(mark, tf.int64) for mark in (-1, -2))
    lengths = tf.range(longest, 0, -1)

    def step(start: tf.Tensor, parts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        at = tf.repeat(tf.minimum(start, size)[:, None], longest, 1)
        wide = tf.broadcast_to(lengths, tf.shape(at))
        part = tf.strings.substr(tf.repeat(word[:, None], longest, 1), at, wide, "UTF8_CHAR")
        part = tf.where(at > 0, "##" + part, part)
        found = tokens.lookup(part)
        fits = (found != unknown) & (at + lengths <= size[:, None])
        first = tf.argmax(fits, 1)
        number = tf.gather(found, first, batch_dims=1)
        known, done = tf.reduce_any(fits, 1), start >= size
        new = tf.where(done, ended, tf.where(known, number, nothing_fits))
        next_ = tf.where(known & ~done, start + tf.gather(lengths, first), size)
        return next_, tf.concat([parts, new[:, None]], 1)

    start = tf.where(size > _LONGEST_WORD, size, 0)
    shapes = (start.shape, tf.TensorShape([None, None]))
    none = tf.zeros([tf.size(word), 0], tf.int64)
    _, parts = tf.while_loop(
        lambda start, _: tf.reduce_any(start < size), step, (start, none), shape_invariants=shapes
    )
    bad = tf.reduce_any(parts == nothing_fits, 1, keepdims=True) | (size > _LONGEST_WORD)[:, None]
    parts = tf.concat([tf.where(bad, unknown, ended), tf.where(bad, ended, parts)], 1)
    each = tf.ragged.boolean_mask(parts, parts >= 0)
    return words.with_flat_values(tf.gather(each, place)).merge_dims(1, 2)


def padded(ids: tf.RaggedTensor, length: int, ends: tuple[int, int] | None = None) -> tf.Tensor:
    """Pad texts of tokens with zeros: int32 [n, longest text], at least one column.

    Args:
        ids: int64 [n, (tokens)].
        length: Longer texts are cut.
        ends: The first and the last token to add to each text.
    """
    if ends is None:
        ids = ids[:, :length]
    else:
        first, last = (tf.fill([ids.nrows(), 1], tf.constant(end, tf.int64)) for end in ends)
        ids = tf.concat([first, ids[:, : length - 2], last], 1)
    dense = tf.cast(ids.to_tensor(), tf.int32)
    missing = tf.cast(tf.shape(dense)[1] == 0, tf.int32)  # No text has a word.
    paddings: Any = [[0, 0], [0, missing]]
    return tf.pad(dense, paddings)
