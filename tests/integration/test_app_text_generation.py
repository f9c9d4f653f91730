"""Text generation as a user starts it: the pages of our own documentation."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from app_commands import run, tune
from scaling import only_in_full
from towerpack.checkpoint import load_checkpoint
from towerpack.inference import load_exported
from towerpack.serving import create_app

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("apps", "callbacks", "export", "serving")
RECIPE: dict[str, Any] = {
    "task": "text_generation",
    "data": {
        "path": "pages",
        "train": "*.md",
        "test": "serving.md",
        "batch_size": 8,
        "steps": 16,
        "eval_steps": 64,
        "eval_context": 16,
    },
    "model": {"network": "rnn_basic", "options": {"units": 32, "embedding": 16}},
    "optimizer": {"name": "adam", "learning_rate": 1e-2, "clip_norm": 1.0},
    "train": {"epochs": 2, "steps_per_epoch": 120},
    "sample": {"length": 40},
    "search": {"optimizer.learning_rate": [0.01, 0.02]},
}
SMALL = {
    "transformer": {"network": "transformer", "options": {"width": 16, "layers": 1, "heads": 2}},
    "vectors": {"network": "rnn_basic", "options": {"units": 16}, "vectors": "vectors.txt"},
}
VECTORS = "the 1 2 3 4 5 6\nmodel -1 0 1 0 -1 0\na .5 .5 .5 .5 .5 .5\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pages").mkdir()
    for name in PAGES:
        shutil.copy(DOCS / f"{name}.md", tmp_path / "pages")
    (tmp_path / "lstm.yaml").write_text(json.dumps(RECIPE))
    return tmp_path


def test_pages_through_all_commands(here: Path) -> None:
    trained = json.loads(run("train", "lstm.yaml", "--json"))
    assert trained["val/cost"] < 3.4  # The logarithm of the vocabulary's size is 4.6.
    told = json.loads(run("eval", "lstm.yaml", "--json"))
    assert told["bits_per_character"] == pytest.approx(told["cost"] / np.log(2))
    assert told["perplexity"] == pytest.approx(np.exp(told["cost"]))
    rows = (here / "runs/lstm/eval-test/texts.csv").read_text().splitlines()
    text = (here / "pages/serving.md").read_text()
    assert rows[1].split(",")[:2] == ["serving", f"{len(text)}"]  # Each character once.
    run("export", "runs/lstm")
    tune("lstm.yaml")
    shutil.rmtree(here / "pages")  # From here on the run needs no data.
    prompts = ["The ", "", "## Tow"]
    found = json.loads(run("infer", "runs/lstm", *prompts, "sample.seed=3", "--json"))
    assert [row["source"] for row in found] == prompts
    assert [len(row["generated"]) for row in found] == [40] * 3
    files = [(here / "runs/lstm/infer" / row["files"][0]).read_text() for row in found]
    assert files == [row["source"] + row["generated"] for row in found]
    # What a text becomes depends on its place among the others, and not on these.
    (alone,) = json.loads(run("infer", "runs/lstm", prompts[0], "sample.seed=3", "--json"))
    assert alone["generated"] == found[0]["generated"]
    check_pieces(here / "runs/lstm/export/saved_model/1", found)
    asyncio.run(check_served(here / "runs/lstm/export/saved_model", found))


@only_in_full
def test_a_run_that_was_stopped_between_batches_has_the_state_of_its_streams(here: Path) -> None:
    few = ["train", "lstm.yaml", "steps_per_epoch=20"]
    run(*few, "-o", "runs/whole")
    run(*few, "epochs=1", "-o", "runs/parts")
    run("train", "runs/parts", "epochs=2")
    whole, parts = (load_checkpoint(here / "runs" / name).model for name in ("whole", "parts"))
    assert {"state_c0", "state_h1"} < whole.keys()
    for name, value in whole.items():
        np.testing.assert_array_equal(value, parts[name], err_msg=name)


def check_pieces(version: Path, found: list[Any]) -> None:
    """In two calls a text becomes what it becomes in one, and what `infer` made of it."""
    exported = load_exported(version)
    calls = {"temperature": np.float32(0.8), "seed": np.int32(3)}
    given, new = [row["source"] for row in found], [b""] * 3
    infos = exported.signatures["serving_default"].inputs
    state = {
        name: np.zeros([3, *info.shape[1:]], info.dtype)
        for name, info in infos.items()
        if name.startswith("state_")
    }
    for length in (13, 1, 26):
        state = exported.run({"text": given, "length": np.int32(length), **state, **calls})
        new = [a + b for a, b in zip(new, state.pop("generated"), strict=True)]
        given = [""] * 3
    assert [text.decode() for text in new] == [row["generated"] for row in found]
    assert json.loads((version / "towerpack.json").read_text())["task"] == "text_generation"


async def check_served(folder: Path, found: list[Any]) -> None:
    """The server takes a first piece without a state, and the next with what it gave back."""
    served = create_app(folder, name="lstm")
    transport = httpx.ASGITransport(app=served)
    async with (
        served.router.lifespan_context(served),
        httpx.AsyncClient(transport=transport, base_url="http://here") as client,
    ):
        inputs: dict[str, Any] = {"text": ["The "], "length": 15, "temperature": 0.8, "seed": 3}
        new = ""
        for length in (15, 25):
            body = {"inputs": {**inputs, "length": length}}
            answer = (await client.post("/v1/models/lstm:predict", json=body)).json()
            outputs = answer["outputs"]
            new += outputs.pop("generated")[0]
            inputs |= {"text": [""], **outputs}
        assert new == found[0]["generated"]
        wrong = {"inputs": {**inputs, "length": 0}}
        answer = await client.post("/v1/models/lstm:predict", json=wrong)
        assert answer.status_code == 400, answer.text


@only_in_full
@pytest.mark.parametrize("network", SMALL)
def test_other_networks_and_words(here: Path, network: str) -> None:
    recipe = {**RECIPE, "model": SMALL[network], "data": {**RECIPE["data"], "unit": "word"}}
    (here / "words.yaml").write_text(json.dumps(recipe))
    (here / "vectors.txt").write_text(VECTORS)
    trained = json.loads(run("train", "words.yaml", "epochs=1", "steps_per_epoch=20", "--json"))
    assert trained["val/bits_per_character"] < trained["val/cost"] / np.log(2)
    width = load_checkpoint(here / "runs/words").model["embedding/embeddings"].shape[1]
    assert width == {"transformer": 16, "vectors": 6}[network]
    (row,) = json.loads(run("infer", "runs/words", "A run", "sample.top_k=5", "--json"))
    assert len(row["generated"]) >= 40  # Tokens of a character or more.
