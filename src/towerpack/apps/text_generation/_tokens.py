from __future__ import annotations

from typing import Final

import tensorflow as tf

from towerpack.apps.text import PIECES, Kind, Vocabulary

BEGIN_ID: Final = 2  # id of `[CLS]`, which starts each text
NUM_SPECIAL: Final = 3  # tokens that are not part of a text: `[PAD]`, `[UNK]`, `[CLS]`
LONGEST: Final = 100_000  # maximum number of tokens in a prompt or in the generated part
_UNKNOWN: Final = 1
_MARK: Final = "\x1f"


def ids_of(text: tf.Tensor, vocabulary: Vocabulary, kind: Kind) -> tf.RaggedTensor:
    """Return `Vocabulary.ids` of each text: string [n] to int32 [n, any]."""
    marked = tf.strings.regex_replace(text, f"({PIECES[kind]})", rf"\1{_MARK}")
    pieces = tf.strings.split(marked, _MARK)
    pieces = tf.ragged.boolean_mask(pieces, pieces != "")
    # Search ids by the hashes of tokens, because a lookup table would need initialization.
    known = tf.constant([token.encode() for token in vocabulary.tokens])
    hashes = tf.strings.to_hash_bucket_fast(known, 2**62)
    order = tf.argsort(hashes)
    wanted = tf.strings.to_hash_bucket_fast(pieces.flat_values, 2**62)
    index = tf.minimum(tf.searchsorted(tf.gather(hashes, order), wanted), len(vocabulary) - 1)
    ids = tf.gather(order, index)
    is_known = tf.gather(known, ids) == pieces.flat_values
    return pieces.with_flat_values(tf.where(is_known, ids, _UNKNOWN))


def texts_of(ids: tf.Tensor, vocabulary: Vocabulary) -> tf.Tensor:
    """Convert token ids int32 [n, time] to texts, string [n]. Special tokens are omitted."""
    shown = [b""] * NUM_SPECIAL + [token.encode() for token in vocabulary.tokens[NUM_SPECIAL:]]
    return tf.strings.reduce_join(tf.gather(tf.constant(shown), ids), 1)
