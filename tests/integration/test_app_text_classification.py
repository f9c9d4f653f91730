"""Text classification as a user starts it: docstrings, and what they are about."""

from __future__ import annotations

import csv
import functools
import inspect
import json
import pydoc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from typer.testing import CliRunner

from app_commands import asked, run
from scaling import only_in_full
from towerpack.apps import find_recipe
from towerpack.apps.text import Vocabulary
from towerpack.checkpoint import load_checkpoint
from towerpack.cli import app

TOPICS = {
    "files": ["pathlib", "shutil", "tempfile", "zipfile", "tarfile", "posixpath", "glob", "os"],
    "mail": [
        "email.message",
        "smtplib",
        "imaplib",
        "poplib",
        "email.utils",
        "mailbox",
        "http.client",
    ],
    "numbers": ["statistics", "random", "decimal", "fractions", "math", "cmath", "heapq", "bisect"],
}
RECIPE = {
    "task": "text_classification",
    "data": {"path": ".", "max_length": 40, "batch_size": 16, "vocab_size": 900},
    "model": {"network": "seq2label_cnn", "options": {"embedding_size": 32, "filters": 16}},
    "optimizer": {"name": "adam", "learning_rate": 5e-3},
    "train": {"epochs": 6},
    "search": {"optimizer.learning_rate": [0.005, 0.003]},
}
QUESTIONS = [
    "Remove a directory and the files in it.",
    "Send a message to the server of a mailbox",
    "Return the median of the data, a float",
    "path " * 5000,
]


@functools.cache
def docstrings() -> list[tuple[str, str]]:
    found: dict[str, str] = {}
    for topic, modules in TOPICS.items():
        for name in modules:
            module: Any = pydoc.locate(name)
            owners = [module, *(c for _, c in inspect.getmembers(module, inspect.isclass))]
            for owner in owners:
                if getattr(owner, "__module__", name).partition(".")[0] == name.partition(".")[0]:
                    for _, member in inspect.getmembers(owner, callable):
                        found.setdefault(inspect.getdoc(member) or "", topic)
    return sorted((text, topic) for text, topic in found.items() if len(text) > 20)


def table(path: Path, rows: list[tuple[str, str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *rows])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = docstrings()
    table(tmp_path / "train.csv", [row for i, row in enumerate(rows) if i % 5])
    table(tmp_path / "test.csv", rows[::5])
    (tmp_path / "docs.yaml").write_text(json.dumps(RECIPE))
    return tmp_path


def test_docstrings_through_all_commands(here: Path) -> None:
    run("tune", "docs.yaml", "--trials", "1", "--out", "tuned")
    assert find_recipe("tuned/best.yaml").config.optimizer.learning_rate in (0.005, 0.003)
    [done] = (here / "tuned").glob("trial-*/recipe.yaml")
    done.parent.rename(here / "run")
    run("export", "run")
    # From here on the run needs no data but those that it is to be tried on.
    (here / "train.csv").unlink()
    told = json.loads(run("eval", "run", "--json"))
    assert told["count"] == len(docstrings()[::5])
    assert told["accuracy"] > 0.6
    assert told["roc_auc"] > 0.75
    # The number of `eval`, of what `infer` gives.
    tested = docstrings()[::5]
    answered = json.loads(run("infer", "run", *(text for text, _ in tested), "--json"))
    right = [row["class"] == topic for row, (_, topic) in zip(answered, tested, strict=True)]
    assert told["accuracy"] == pytest.approx(np.mean(right), abs=1e-6)
    (here / "some.txt").write_text("\n".join(QUESTIONS[:2]) + "\n")
    given = ["some.txt", QUESTIONS[2], "", "-"]
    done = CliRunner().invoke(app, ["infer", "run", *given, "--json"], input=QUESTIONS[3])
    rows = json.loads(done.stdout)
    assert (done.exit_code, rows.pop(3)["error"]) == (1, "The text must not be empty.")
    assert [row["source"] for row in rows] == QUESTIONS
    assert [row["class"] for row in rows[:3]] == list(TOPICS)
    shown = (here / "run/infer/predictions.csv").read_text().splitlines()
    assert shown[0] == "source,class,probability,error"
    check_export(here / "run", rows)
    check_served(here / "run/export/saved_model", rows)


def test_a_network_starts_from_vectors_of_words(here: Path) -> None:
    words = ["file", "the", "message", "nowhereinthesetexts"]
    vectors = {word: np.full(8, i + 1.5) for i, word in enumerate(words)}
    lines = [f"{word} {' '.join(map(str, vector))}" for word, vector in vectors.items()]
    (here / "glove.txt").write_text("\n".join(lines))
    settings = ["model.options={embedding_size: 8, filters: 8}", "data.vectors=glove.txt"]
    once = ["epochs=1", "learning_rate=1e-6", "steps_per_epoch=4"]
    run("train", "docs.yaml", *settings, *once)
    tokens = Vocabulary.read(here / "runs/docs/tokenizer.json").tokens
    trained = load_checkpoint(here / "runs/docs").model["embedding/embeddings"]
    for word in words[:3]:
        np.testing.assert_allclose(trained[tokens.index(word)], vectors[word], atol=1e-4)


@only_in_full
def test_bert_learns_and_is_exported_with_its_tokenizer(here: Path) -> None:
    network = "model.options={layers: 1, hidden_size: 32, num_heads: 2, dropout: 0.0}"
    settings = ["data.tokenizer=wordpiece", "data.max_length=24", "learning_rate=2e-3", "epochs=3"]
    trained = json.loads(run("train", "docs.yaml", "network=bert", network, *settings, "--json"))
    assert trained["val/error"] < 0.5
    run("export", "runs/docs")
    rows = json.loads(run("infer", "runs/docs", "-", "--json", input="\n".join(QUESTIONS)))
    check_export(here / "runs/docs", rows)


def check_export(run_dir: Path, rows: list[Any]) -> None:
    """The SavedModel takes texts, and says what inference said."""
    version = run_dir / "export/saved_model/1"
    signature = tf.saved_model.load(str(version)).signatures["serving_default"]
    answers = {k: v.numpy() for k, v in signature(text=tf.constant(QUESTIONS)).items()}
    tops = [{t["class"]: t["probability"] for t in row["top"]} for row in rows]
    wanted = [[top[name] for name in TOPICS] for top in tops]
    np.testing.assert_allclose(answers["probabilities"], wanted, atol=1e-5)
    assert [name.decode() for name in answers["classes"]] == [row["class"] for row in rows]
    told = json.loads((version / "towerpack.json").read_text())
    assert (told["task"], told["class_names"]) == ("text_classification", list(TOPICS))
    assert (version / "tokenizer.json").read_bytes() == (run_dir / "tokenizer.json").read_bytes()


def check_served(folder: Path, rows: list[Any]) -> None:
    (folder.parent / "questions.txt").write_text("\n".join(QUESTIONS))
    answers = asked(folder, str(folder.parent / "questions.txt"))
    assert [row["classes"][0] for row in answers] == [row["class"] for row in rows]
