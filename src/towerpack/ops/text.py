"""Split of texts into words and word pieces by TensorFlow, with the results of `tokenizers`."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import tensorflow as tf

_UNCHANGED: Final = "\0"
_LONGEST_WORD: Final = 100
"""Maximum number of characters of a word. Longer words are unknown, as in BERT."""


def character_table(characters: Mapping[str, str]) -> Any:
    """Return a lookup table for `words_of`.

    Args:
        characters: Replacements by character. Spaces separate words.
    """
    keys, values = tf.constant(list(characters)), tf.constant(list(characters.values()))
    content = tf.lookup.KeyValueTensorInitializer(keys, values)
    return tf.lookup.StaticHashTable(content, _UNCHANGED)


def token_table(tokens: Sequence[str], unknown: str = "[UNK]") -> Any:
    """Return a lookup table from tokens to their indices.

    Args:
        tokens: Tokens in order.
        unknown: Token whose index is returned for all other strings.
    """
    numbers = tf.range(len(tokens), dtype=tf.int64)
    content = tf.lookup.KeyValueTensorInitializer(tf.constant(list(tokens)), numbers)
    return tf.lookup.StaticHashTable(content, tokens.index(unknown))


def words_of(text: tf.Tensor, characters: Any) -> tf.RaggedTensor:
    """Split texts into words, [n, (words)]. Invalid bytes become U+FFFD.

    Args:
        text: Texts in UTF-8, [n].
        characters: Result of `character_table`.
    """
    text = tf.strings.unicode_transcode(text, "UTF-8", "UTF-8")
    split = tf.strings.unicode_split(text, "UTF-8")

    def replaced(old: tf.Tensor) -> tf.Tensor:
        new = characters.lookup(old)
        return tf.where(new == _UNCHANGED, old, new)

    return tf.strings.split(tf.strings.reduce_join(tf.ragged.map_flat_values(replaced, split), 1))


def numbers_of(words: tf.RaggedTensor, tokens: Any) -> tf.RaggedTensor:
    """Return the token indices of whole words, int64 [n, (words)].

    Args:
        words: Words, [n, (words)].
        tokens: Result of `token_table`.
    """
    return tf.ragged.map_flat_values(tokens.lookup, words)


def word_pieces(words: tf.RaggedTensor, tokens: Any, longest: int) -> tf.RaggedTensor:
    """Return the token indices of word pieces, int64 [n, (pieces)].

    Each piece is the longest token that matches (Wu et al. 2016, section 4.1). As in BERT, later
    pieces begin with `##`, and words that do not consist of tokens are unknown.

    Args:
        words: Words, [n, (words)].
        tokens: Result of `token_table`.
        longest: Number of characters of the longest token.
    """
    word, place = tf.unique(words.flat_values)
    size = tf.strings.length(word, "UTF8_CHAR")
    unknown = tokens.default_value
    ended, nothing_fits = (tf.constant(mark, tf.int64) for mark in (-1, -2))
    lengths = tf.range(longest, 0, -1)

    def step(start: tf.Tensor, parts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        begin = tf.repeat(tf.minimum(start, size)[:, None], longest, 1)
        wide = tf.broadcast_to(lengths, tf.shape(begin))
        part = tf.strings.substr(tf.repeat(word[:, None], longest, 1), begin, wide, "UTF8_CHAR")
        part = tf.where(begin > 0, "##" + part, part)
        indices = tokens.lookup(part)
        fits = (indices != unknown) & (begin + lengths <= size[:, None])
        first = tf.argmax(fits, 1)
        number = tf.gather(indices, first, batch_dims=1)
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
    """Pad token sequences with zeros, int32 [n, longest text], at least one column.

    Args:
        ids: int64 [n, (tokens)].
        length: Maximum length; longer texts are truncated.
        ends: Tokens to add at the beginning and at the end of each text.
    """
    if ends is None:
        ids = ids[:, :length]
    else:
        first, last = (tf.fill([ids.nrows(), 1], tf.constant(end, tf.int64)) for end in ends)
        ids = tf.concat([first, ids[:, : length - 2], last], 1)
    dense = tf.cast(ids.to_tensor(), tf.int32)
    missing = tf.cast(tf.shape(dense)[1] == 0, tf.int32)  # All texts are empty.
    paddings: Any = [[0, 0], [0, missing]]
    return tf.pad(dense, paddings)
