"""From texts to numbers of tokens and back in a graph, as a vocabulary does it."""

from __future__ import annotations

from typing import Final

import tensorflow as tf

from towerpack.apps.text import PIECES, Kind, Vocabulary

BEGIN_ID: Final = 2
"""`[CLS]`: what comes before a text."""
NUM_SPECIAL: Final = 3
"""Numbers of tokens that are nothing of a text: `[PAD]`, `[UNK]`, `[CLS]`."""
LONGEST: Final = 100_000
"""Tokens of a text that is given, or asked for, in one call."""
_UNKNOWN: Final = 1
_MARK: Final = "\x1f"


def ids_of(text: tf.Tensor, vocabulary: Vocabulary, kind: Kind) -> tf.RaggedTensor:
    """`Vocabulary.ids` of each text: string [n] to int32 [n, any]."""
    marked = tf.strings.regex_replace(text, f"({PIECES[kind]})", rf"\1{_MARK}")
    pieces = tf.strings.split(marked, _MARK)
    pieces = tf.ragged.boolean_mask(pieces, pieces != "")
    # Numbers by a search among hashes, for which a graph needs no table beside it.
    known = tf.constant([token.encode() for token in vocabulary.tokens])
    hashes = tf.strings.to_hash_bucket_fast(known, 2**62)
    order = tf.argsort(hashes)
    asked = tf.strings.to_hash_bucket_fast(pieces.flat_values, 2**62)
    place = tf.minimum(tf.searchsorted(tf.gather(hashes, order), asked), len(vocabulary) - 1)
    found = tf.gather(order, place)
    there = tf.gather(known, found) == pieces.flat_values
    return pieces.with_flat_values(tf.where(there, found, _UNKNOWN))


def texts_of(ids: tf.Tensor, vocabulary: Vocabulary) -> tf.Tensor:
    """Texts of tokens: int32 [n, time] to string [n]; the special ones are nothing."""
    shown = [b""] * NUM_SPECIAL + [token.encode() for token in vocabulary.tokens[NUM_SPECIAL:]]
    return tf.strings.reduce_join(tf.gather(tf.constant(shown), ids), 1)
