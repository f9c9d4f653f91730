"""Texts as streams: nothing twice, nothing lost, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from towerpack import ConfigError
from towerpack._core.errors import FormatError
from towerpack.apps.text_generation import TextGenerationConfig, TextInputter
from towerpack.apps.text_generation._tokens import BEGIN_ID, ids_of, texts_of

ODD = "Don't stop;  naïve 12 Ωs\n\tend. 漢字  "


def inputter(folder: Path, **data: Any) -> TextInputter:
    usual = {"batch_size": 4, "steps": 5, "eval_steps": 20, "eval_context": 6}
    return TextInputter(
        TextGenerationConfig.model_validate({"data": {"path": str(folder), **usual, **data}})
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for i, name in enumerate("abc"):
        (tmp_path / f"{name}.txt").write_text(
            "".join(f"{name}{k:04} " for k in range(60 + 9 * i)), encoding="utf-8"
        )
    return tmp_path


def test_streams_go_on_from_batch_to_batch(folder: Path) -> None:
    data = inputter(folder)
    every = np.concatenate(data.ids("train"))
    tokens, labels, texts, goes_on = (np.stack(c) for c in zip(*data.flow("train"), strict=True))
    n, steps = tokens.shape[1:]
    streams = tokens.transpose(1, 0, 2).reshape(n, -1)
    assert streams.shape[1] == (len(every) - 1) // (n * steps) * steps
    np.testing.assert_array_equal(streams.reshape(-1), every[: streams.size])
    np.testing.assert_array_equal(
        labels.transpose(1, 0, 2).reshape(-1), every[1 : streams.size + 1]
    )
    assert not goes_on[0].any()
    assert goes_on[1:].all()
    assert not texts.any()


@pytest.mark.parametrize("held", [{}, {"val": "b.txt"}, {"val": ["a.txt"], "test": "[c].txt"}])
def test_no_character_is_in_two_parts_and_each_counts_once(
    folder: Path, held: dict[str, Any]
) -> None:
    data = inputter(folder, **held)
    contents = {split: "".join(text for _, text in some) for split, some in data.texts.items()}
    assert sum(map(len, contents.values())) == sum(len(p.read_text()) for p in folder.iterdir())
    words = [set(text.split(" ")[1:-1]) for text in contents.values()]
    assert not words[0] & words[1]
    assert not words[0] & words[2]
    assert not words[1] & words[2]
    for split in ("val", "test"):
        found: dict[str, list[int]] = {}
        for token, label, text, goes_on in data.flow(split):
            assert token.shape[1:] == label.shape[1:] == (26,)
            assert not goes_on.any()
            for row in range(len(token)):
                counted = label[row] >= 0
                found.setdefault(data.name_of(text[row]), []).extend(label[row][counted])
                inside = counted[:-1] & counted[1:]
                np.testing.assert_array_equal(token[row, 1:][inside], label[row, :-1][inside])
        for (name, _), ids in zip(data.texts[split], data.ids(split), strict=True):
            assert ids[0] == BEGIN_ID
            np.testing.assert_array_equal(found[name], ids[1:])


@pytest.mark.parametrize("unit", ["char", "word"])
def test_a_graph_finds_the_tokens_that_the_data_have(tmp_path: Path, unit: str) -> None:
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(ODD * 40, encoding="utf-8")
    data = inputter(tmp_path, unit=unit)
    vocabulary = data.vocabulary
    asked = [ODD, "", "stop stop\r\n☂", " "]
    ids = ids_of(tf.constant(asked), vocabulary, data.kind)
    for text, row in zip(asked, ids, strict=True):
        np.testing.assert_array_equal(row, vocabulary.ids(text))
    known = texts_of(ids.to_tensor(), vocabulary).numpy()
    assert known[0].decode() == ODD
    assert "☂" not in known[2].decode()
    assert len(vocabulary.ids(ODD)) == (len(ODD) if unit == "char" else 14)


@pytest.mark.parametrize(
    ("data", "kind", "told"),
    [
        ({"train": "*.csv"}, ConfigError, r"No files match data\.train: .*\*\.csv"),
        ({"val": "a.txt", "test": "[ab].txt"}, ConfigError, "no common file, got .*a.txt"),
        ({"train": "bad.bin"}, FormatError, r"bad\.bin, line 2"),
        ({"train": "empty.log"}, ConfigError, "'train' data in .* must contain text"),
        ({"batch_size": 5000}, ConfigError, "tokens needs more than the"),
    ],
)
def test_bad_data(folder: Path, data: dict[str, Any], kind: type[Exception], told: str) -> None:
    (folder / "bad.bin").write_bytes(b"good\nb\xff\xfed")
    (folder / "empty.log").write_text("")
    with pytest.raises(kind, match=told):
        inputter(folder, **data).flow("train")


def test_empty_texts_and_encodings(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "blank.txt").write_text(" \n")
    inputter(folder).flow("train")
    assert "1 texts are empty, for example blank." in caplog.text
    (folder / "b.txt").write_bytes(("\ufeff" + "Äpfel\r\n" * 400).encode("utf-16-be"))
    (folder / "c.txt").write_bytes(("Äpfel\r\n" * 400).encode("cp1252"))
    made = inputter(folder, train=["b.txt", "c.txt"], encoding="cp1252")
    assert {*"".join(text for _, text in made.texts["train"])} == {*"Äpfel\n"}


def test_a_text_that_is_too_long_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="fewer than 100,000 characters"):
        inputter(folder).prepare("a" * 1_000_000)
