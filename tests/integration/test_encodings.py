"""One picture in many encodings: `infer`, the exported graph and the server of an application."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path

import httpx
import numpy as np
import pytest
import tensorflow as tf

from encoded_pictures import ENCODINGS
from scaling import sample
from towerpack.apps import Runner, find_recipe, infer
from towerpack.inference import load_exported
from towerpack.serving import create_app

NAMES = sample(list(ENCODINGS), at_least=30)
SHORT = ["train.epochs=1", "train.steps_per_epoch=8", "data.batch_size=32"]


@pytest.mark.slow
def test_infer_graph_and_server_say_the_same(tmp_path: Path) -> None:
    """Of each file, or the graph and the server refuse it with the reason."""
    recipe = find_recipe("digits", SHORT)
    runner = Runner.from_recipe(recipe, tmp_path / "run")
    runner.train()
    files = []
    for number, name in enumerate(NAMES):
        files.append(str(tmp_path / f"{number}.img"))
        Path(files[-1]).write_bytes(ENCODINGS[name].data)
    display = recipe.display(runner.inputter)
    predicted = infer(runner, display, files).rows
    assert not any("error" in row for row in predicted)

    versions = runner.export(tmp_path / "export").parent
    body = [{"b64": base64.b64encode(ENCODINGS[name].data).decode()} for name in NAMES]
    answers = asyncio.run(ask(versions, body))
    graph = load_exported(versions / "1")
    for name, row, answer in zip(NAMES, predicted, answers, strict=True):
        data = {"image_bytes": [ENCODINGS[name].data]}
        if not ENCODINGS[name].in_graphs:
            assert "This model cannot read the image" in answer["error"], name
            with pytest.raises(tf.errors.InvalidArgumentError, match="Save it as PNG"):
                graph.run(data)
            continue
        (probabilities,) = graph.run(data)["probabilities"]
        np.testing.assert_allclose(answer["probabilities"], probabilities, atol=1e-5)
        assert abs(row["probability"] - probabilities.max()) < 0.01, name


async def ask(folder: Path, instances: list[dict[str, str]]) -> list[dict[str, object]]:
    """The predictions of a server for one request."""
    transport = httpx.ASGITransport(create_app(folder, name="it"))
    async with httpx.AsyncClient(transport=transport) as client:
        body = json.dumps({"instances": instances})
        answer = await client.post("http://x/v1/models/it:predict", content=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["predictions"]
