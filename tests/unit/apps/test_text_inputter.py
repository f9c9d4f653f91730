"""Texts with labels: formats, classes, what is wrong with files."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from towerpack import TowerpackError
from towerpack.apps.text_classification import (
    DataConfig,
    TextClassificationConfig,
    TextClassificationModeler,
    TextInputter,
)

TEXTS = [("a good film", "pos"), ('bad, "bad" film', "neg"), ("", "neg"), ("so good", "pos")] * 4
FORMATS: dict[str, dict[str, Any]] = {
    "csv": {"inputter": "table"},
    "tsv": {"inputter": "table", "text": 1, "label": 0},
    "prefix": {"inputter": "lines"},
    "labels": {"inputter": "lines"},
    "folder": {"inputter": "folder"},
}


def write(root: Path, form: str, split: str) -> None:
    def put(name: str, lines: list[str]) -> None:
        (root / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    if form == "csv":
        quoted = ['"' + text.replace('"', '""') + '"' for text, _ in TEXTS]
        rows = [
            f"{i},{t},{label}" for i, (t, (_, label)) in enumerate(zip(quoted, TEXTS, strict=True))
        ]
        put(f"{split}.csv", ["id,text,label", *rows])
    elif form == "tsv":
        put(f"{split}.tsv", [f"{label}\t{text}" for text, label in TEXTS])
    elif form == "prefix":
        put(f"{split}.txt", [f"__label__{label} {text}" for text, label in TEXTS])
    elif form == "labels":
        put(f"{split}.txt", [text for text, _ in TEXTS])
        put(f"{split}.labels", [label for _, label in TEXTS])
    else:
        for i, (text, label) in enumerate([*TEXTS, ("without label", "unsup")]):
            (root / split / label).mkdir(parents=True, exist_ok=True)
            put(f"{split}/{label}/{i}.txt", [text])


def made(root: Path, **options: Any) -> TextInputter:
    given = {"path": str(root), "batch_size": 4, "max_length": 8, "validation": 0.25, **options}
    return TextInputter(DataConfig(**given))


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_gives_the_same_texts(form: str, tmp_path: Path) -> None:
    for split in ("train", "test"):
        write(tmp_path, form, split)
    inputter = made(tmp_path, **FORMATS[form])
    assert inputter.class_names == ["neg", "pos"]
    found = [(text.strip(), inputter.class_names[label]) for text, label in inputter.part("test")]
    assert sorted(found) == sorted(TEXTS)
    tokens, labels = next(iter(inputter.flow("test")))
    assert (tokens.dtype, tokens.shape[0], labels.dtype) == (np.int32, 4, np.int64)
    train, val = (inputter.part(split) for split in ("train", "val"))
    assert sorted([*train, *val]) == sorted(inputter.part("test"))
    assert {label for _, label in val} == {0, 1} and not {*train} & {*val}


def test_a_run_keeps_what_predictions_need(tmp_path: Path) -> None:
    for split in ("train", "val"):
        write(tmp_path, "csv", split)
    inputter = made(tmp_path)
    (tmp_path / "run").mkdir()
    inputter.keep(tmp_path / "run")
    later = made(tmp_path / "moved")
    later.restore(tmp_path / "run")
    assert list(later.class_names) == ["neg", "pos"]
    [ids] = later.prepare("Good unheard FILM " * 9)
    assert ids.shape == (8,)
    assert ids.tolist() == inputter.prepare("Good unheard FILM " * 9)[0].tolist()
    assert later.vocabulary.text(ids[:3]) == "good [UNK] film"
    (tmp_path / "run" / "checkpoints").mkdir()
    (tmp_path / "run" / "tokenizer.json").write_text(
        made(tmp_path, vocab_size=10, tokenizer="wordpiece").vocabulary.tokenizer.to_str()
    )
    config = TextClassificationConfig(transfer={"pretrained": str(tmp_path / "run")})  # type: ignore[arg-type]
    with pytest.raises(TowerpackError, match="vocabulary must be the same"):
        TextClassificationModeler(config, inputter).pretrained()


def test_cut_and_empty_texts_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = ["__label__a " + "word " * 100_000, "__label__b ", "__label__a word", "__label__b b"]
    for split in ("train", "val"):
        (tmp_path / f"{split}.txt").write_text("\n".join(rows))
    inputter = made(tmp_path, inputter="lines")
    with caplog.at_level(logging.INFO):
        assert next(iter(inputter.flow("train")))[0].shape == (4, 8)
    assert "train: 1 of 4 texts are truncated to 8 tokens, and 1 have no words" in caplog.text


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "cp1252"])
@pytest.mark.parametrize("form", FORMATS)
def test_encodings(form: str, encoding: str, tmp_path: Path) -> None:
    """Byte order marks decide. A file in another encoding is an error, unless it is said."""
    for split in ("train", "test"):
        write(tmp_path, form, split)
    for file in [file for file in tmp_path.rglob("*") if file.is_file()]:
        content = file.read_text().replace("pos", "té").replace("neg", "tè")
        if file.suffix == ".txt":
            content = content.replace("so", "ñ")
        text = content.replace("\n", "\r\n")
        mark = "\ufeff" if encoding == "utf-16-le" else ""
        file.write_bytes((mark + text).encode(encoding))
    for folder in (tmp_path / "train", tmp_path / "test"):
        if folder.is_dir():
            (folder / "pos").rename(folder / "té")
            (folder / "neg").rename(folder / "tè")
    if encoding == "cp1252":
        with pytest.raises(TowerpackError, match=r", line \d+: .* is not enc(.|\n)*data\.encoding"):
            made(tmp_path, **FORMATS[form]).part("train")
    given = {"encoding": encoding} if encoding == "cp1252" else {}
    inputter = made(tmp_path, **FORMATS[form], **given)
    assert inputter.class_names == ["tè", "té"]
    texts = [text for text, _ in inputter.part("test")]
    assert sum("bad" in text for text in texts) == 4
    assert not any(set(text) & set("\ufeff\ufffd\r\0") for text in texts)


TABLES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "semicolons": ("train.csv", 'Text;Label\nbad;"neg"\n"good; fine";pos\n', {}),
    "spaces": ("train.csv", ' text , label \nbad, neg\n"good; fine", pos \n', {}),
    "tabs": ("train.csv", "text\tlabel\nbad\tneg\ngood; fine\tpos\n", {}),
    "header": ("train.tsv", "v1\tv2\nneg\tbad\npos\tgood; fine\n", {"text": 1, "label": 0}),
    "no suffix": (
        "spam",
        'neg\tbad\nneg\tbad\npos\tgood; fine\npos\t"so, so\n',
        {"text": 1, "label": 0},
    ),
    "prefix": ("train.txt", "\n__label__neg\tbad\n  __label__pos\u2003good; fine", {}),
}


@pytest.mark.parametrize("table", TABLES)
def test_tables_of_other_programs(table: str, tmp_path: Path) -> None:
    name, content, options = TABLES[table]
    (tmp_path / name).write_bytes(content.encode("utf-8-sig"))
    form = "lines" if name.endswith(".txt") else "table"
    inputter = made(tmp_path, inputter=form, train=name, validation=0.4, **options)
    assert list(inputter.class_names) == ["neg", "pos"]
    every = [*inputter.part("train"), *inputter.part("val")]
    assert {*every} - {('"so, so', 1)} == {("bad", 0), ("good; fine", 1)}


def test_doubtful_rows_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [
        "text,label",
        "a,New York",
        "b,new  york",
        '"c',
        'd",x',
        "e,x",
        " ,x",
        "f,e\u0301",
        "g,é",
    ]
    (tmp_path / "train.csv").write_text("\n".join(rows))
    inputter = made(tmp_path)
    assert len(inputter.class_names) == 5
    for message in (
        r"'New York' \(1 rows, first in .*train\.csv, line 2\), 'new  york' .* line 3\)",
        r"'e\\u0301' \(1 rows, first in .*line 8\), '\\xe9'",
        r"1 texts are empty, for example in .*line 7",
        r"1 texts have several lines, for example in .*line 4",
    ):
        assert re.search(message, caplog.text), message
    assert made(tmp_path, class_names=inputter.class_names).part("train")


MISTAKES: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "column": ("train.csv", "words,label\na,b\n", {}, "one column 'text', got 0.*words, label"),
    "short": ("train.csv", "text,label\na,b\nc\n", {}, "line 3 must have 2 fields, got 1"),
    "empty": ("train.csv", "text,label\n", {}, "at least two classes.*none"),
    "classes": ("train.csv", "text,label\na,b\nc,b\n", {}, "at least two classes.*b"),
    "names": ("train.csv", "text,label\na,b\n", {"class_names": ["c", "d"]}, "line 2.*class 'b'"),
    "prefix": ("train.txt", "__label__a b\nc d\n", {"inputter": "lines"}, "line 2 must have "),
    "nothing": ("train.json", "", {}, "No data found in"),
    "folder": ("train/a.txt", "b", {"inputter": "folder"}, "No texts found in"),
    "absent": ("train.csv", "", {"train": "other.csv"}, "other.csv cannot be read"),
    "batch": ("train.csv", "text,label\na,b\nc,d\n", {"validation": 0.5}, "at least one batch of"),
    "no label": ("train.csv", "text,label\na,b\nwhat is this,\n", {}, "line 3 must have a label"),
    "spaces": ("train.tsv", "a\tb\nc\t \n", {"text": 0, "label": 1}, "line 2 must have "),
    "long": (
        "train.csv",
        "text,label\na,b\n\nfine, really,c\n",
        {},
        "line 4 must have 2 fields, got 3",
    ),
    "open": ("train.csv", 'text,label\na,b\n"c,d\ne,d\n', {}, "line 3: .* quotation marks"),
    "inner": ("train.csv", 'text,label\na,b\n"c" and d,d\n', {}, "line 3: .* quotation marks"),
    "two columns": ("train.csv", "text,label,Label\na,b,c\n", {"label": "LABEL"}, "'LABEL', got 2"),
    "labels": (
        "train.txt",
        "__label__a __label__b c\n",
        {"inputter": "lines"},
        "line 1 must have one label, but has several",
    ),
    "encoding": (
        "train.csv",
        "text,label\na,b\n",
        {"encoding": "latin5x"},
        "no encoding 'latin5x'",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_bad_file_is_one_error(mistake: str, tmp_path: Path) -> None:
    name, content, options, message = MISTAKES[mistake]
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(content)
    with pytest.raises(TowerpackError) as raised:
        made(tmp_path, **options).flow("train")
    assert re.search(message, str(raised.value), re.DOTALL)
