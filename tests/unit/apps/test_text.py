"""Vocabularies, vectors of words, texts that a user names."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from towerpack import ConfigError, FormatError
from towerpack.apps.text import Vocabulary, read_vectors, text_of, text_sources

TEXTS = ["The cat sat.", "The cat ran!", "A dog ran", "the end\n"]


@pytest.mark.parametrize("kind", ["word", "wordpiece", "char"])
def test_a_vocabulary_is_a_function_of_its_texts(kind: Any, tmp_path: Path) -> None:
    one, other = (Vocabulary.train(iter(TEXTS), kind, 60) for _ in range(2))
    assert one.tokens == other.tokens
    assert one.tokens[:2] == ["[PAD]", "[UNK]"]
    one.write(tmp_path / "tokenizer.json")
    read = Vocabulary.read(tmp_path / "tokenizer.json")
    assert read == one
    for text in TEXTS:
        assert read.ids(text).tolist() == one.ids(text).tolist()
    assert 1 in one.ids("Quick")
    if kind == "char":
        assert one.text(one.ids("cat ran\n")) == "cat ran\n"


def test_long_and_empty_texts_are_cut_and_counted() -> None:
    for kind in ("word", "wordpiece"):
        vocabulary = Vocabulary.train(TEXTS, kind, 60)
        ids, cut, empty = vocabulary.encoded(["the cat " * 50, " \n", "cat"], 9)
        assert (cut, empty) == (1, 1)
        assert len(ids[0]) == 9
        if vocabulary.ends:
            assert (ids[0][0], ids[0][-1]) == vocabulary.ends
            assert ids[1].tolist() == list(vocabulary.ends)


def test_bert_s_vocabulary_is_read(tmp_path: Path) -> None:
    file = tmp_path / "vocab.txt"
    listed = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##aff", "##able"]
    file.write_text("\n".join(listed))
    vocabulary = Vocabulary.read(file, "wordpiece")
    assert vocabulary.ids("Unaffable ünaff runs").tolist() == [6, 7, 8, 6, 7, 2]
    assert vocabulary.ends == (3, 4)
    assert vocabulary.rules == "wordpiece"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("vocab.txt", "[UNK]\n[PAD]\ncat"),  # Padding is not 0.
        ("vocab.txt", "[PAD]\n[UNK]\ncat\ncat"),
        ("vocab.txt", "cat\ndog"),
        ("tokenizer.json", "{}"),
    ],
)
def test_what_is_no_vocabulary_is_refused(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(FormatError, match=name):
        Vocabulary.read(tmp_path / name)


def test_vectors_are_those_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "glove.txt"
    file.write_text("cat 1 2 3\ndog 4 5 6.5\nbird 0 0 0\n")
    vectors = read_vectors(file, ["[PAD]", "[UNK]", "dog", "cat", "fish"])
    assert vectors[[0, 2, 3]].tolist() == [[0, 0, 0], [4, 5, 6.5], [1, 2, 3]]
    assert vectors[4].any()
    again = read_vectors(file, ["[PAD]", "[UNK]", "dog", "cat", "fish"])
    assert np.array_equal(vectors, again)
    file.write_text("cat 1 2 3\ndog 4 5\n")
    with pytest.raises(FormatError, match=r"glove\.txt, line 2: 2 values instead of 3"):
        read_vectors(file, ["cat"])
    file.write_text("cat 1 two 3\n")
    with pytest.raises(FormatError, match="line 1"):
        read_vectors(file, ["cat"])
    with pytest.raises(ConfigError, match="some of the 1 tokens, but has none"):
        file.write_text("cat 1 2 3\n")
        read_vectors(file, ["dog"])


def test_sources_are_texts_files_and_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "some.txt").write_text("one\n\ntwo\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("three\nfour"))
    given = ["a text", str(tmp_path / "some.txt"), "-", "x" * 5000]
    assert text_sources(given) == ["a text", "one", "", "two", "three", "four", "x" * 5000]
    (tmp_path / "other.txt").write_bytes("\ufeffcafé\r\n\r\nfour".encode("utf-16-le"))
    assert text_sources([str(tmp_path / "other.txt")]) == ["café", "", "four"]
    (tmp_path / "other.txt").write_bytes("café".encode("cp1252"))
    assert text_sources([str(tmp_path / "other.txt")], "cp1252") == ["café"]
    unread, text = text_sources([str(tmp_path / "other.txt"), "a text"])
    assert (unread, text_of(text)) == (str(tmp_path / "other.txt"), "a text")
    for source, message in ((unread, "not encoded in UTF-8"), (" ", "must not be empty")):
        with pytest.raises(FormatError, match=message):
            text_of(source)
    assert text_of(" ", empty=True) == " "
    with pytest.raises(ConfigError, match=r"The file 'absent.txt' does not exist"):
        text_sources(["absent.txt"])
