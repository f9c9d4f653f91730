"""Texts in TensorFlow's operations: the same numbers as `tokenizers` gives."""

from __future__ import annotations

import inspect
import random
import sys
from functools import cache
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from towerpack.apps.text import Vocabulary
from towerpack.ops.text import character_table, words_of

TEXTS = inspect.getsource(random).splitlines()
ODD = [
    "",
    " \t\r\n\u2003",
    "Déjà-vu ... ÎLE, İstanbul; ΣΊΣΥΦΟΣ's straße ﬁn",
    "漢字とかな 한국어 ไทย e\u0301 a\u0308b",
    "zero\u200bwidth \u00ad\u0000control\ufffd \x85 nbsp\u00a0x",
    "😀👩‍👩‍👧 math 𝐀 x²",
    "random" * 40,  # More than 100 characters.
    "unseenwordofmany ##ing [CLS] [UNK]",
    "word " * 50,
]


@cache
def trained(kind: Any) -> Vocabulary:
    made = Vocabulary.train([*TEXTS, *ODD], kind, 700)
    if kind == "wordpiece":  # Its rules for characters are the same, and take a second to read.
        vars(made)["characters"] = trained("word").characters
    return made


def in_graph(vocabulary: Vocabulary, texts: list[Any], length: int) -> np.ndarray:
    _, numbers_of = vocabulary.operations(length)
    spec = tf.TensorSpec([None], tf.string)
    call = tf.function(numbers_of, input_signature=[spec], autograph=False)
    return call(tf.constant(texts)).numpy()


def assert_same(vocabulary: Vocabulary, texts: list[str], length: int) -> None:
    wanted, _, _ = vocabulary.encoded(texts, length)
    got = in_graph(vocabulary, texts, length)
    assert got.shape[1] == max(1, *map(len, wanted))
    for text, ids, row in zip(texts, wanted, got, strict=True):
        assert row[: len(ids)].tolist() == ids.tolist(), repr(text)
        assert not row[len(ids) :].any()


@pytest.mark.parametrize("kind", ["word", "wordpiece"])
@pytest.mark.parametrize("length", [8, 64])
def test_ids_are_those_of_tokenizers(kind: Any, length: int) -> None:
    assert_same(trained(kind), [*ODD, *TEXTS[::9]], length)


def test_every_character_is_read_as_by_tokenizers() -> None:
    every = [chr(i) for i in range(1, sys.maxunicode + 1, 7) if not 0xD800 <= i < 0xE000]
    texts = ["a" + "a".join(every[i : i + 50]) + "a" for i in range(0, len(every), 50)]
    rules = trained("word").tokenizer
    wanted = [
        [
            piece
            for piece, _ in rules.pre_tokenizer.pre_tokenize_str(rules.normalizer.normalize_str(t))
        ]
        for t in texts
    ]
    got = words_of(tf.constant(texts), character_table(trained("word").characters)).to_list()
    assert [[word.decode() for word in words] for words in got] == wanted


def test_no_text_is_too_odd() -> None:
    vocabulary = trained("word")
    assert in_graph(vocabulary, [""], 8).tolist() == [[0]]
    broken = in_graph(vocabulary, [b"random \xff\xfe random"], 8)
    assert broken.tolist() == [vocabulary.ids("random random").tolist()]
    long = in_graph(trained("wordpiece"), ["random " * 10_000], 16)
    assert long.shape == (1, 16)
    assert len(set(long[0, 1:-1])) <= 2
