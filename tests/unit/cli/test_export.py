"""`towerpack export` and `towerpack bench`, on a script and its run."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from towerpack._core.errors import TowerpackError
from towerpack.checkpoint import CheckpointStore
from towerpack.cli import app

SCRIPT = """
import keras
import tensorflow as tf
from towerpack import FullyConnected, ModelDesc, expose

class Small(ModelDesc):
    def inputs(self):
        return [tf.TensorSpec([None, 6], tf.float32, "x")]

    def build_graph(self, x):
        logits = FullyConnected("fc", x, 3)
        expose("prob", tf.nn.softmax(logits))
        return tf.reduce_mean(logits)
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    path = tmp_path / "exported_in_test.py"
    path.write_text(SCRIPT)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    weights = {"fc/kernel": rng.normal(size=[6, 3]), "fc/bias": rng.normal(size=[3])}
    with CheckpointStore(tmp_path / "run" / "checkpoints") as store:
        store.save(5, {"model": {n: w.astype(np.float32) for n, w in weights.items()}}, {})
    np.savez(tmp_path / "examples.npz", x=rng.normal(size=[4, 6]).astype(np.float32))
    (tmp_path / "names.txt").write_text("a\nb\nc\n")
    yield str(path)
    sys.modules.pop(path.stem, None)


def told(*arguments: Any) -> list[str]:
    done = CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines()


def test_export_and_bench(script: str) -> None:
    lines = told("export", script, "--run", "run", "--format", "onnx", "--examples", "examples.npz")
    assert [line.split()[0] for line in lines] == ["converted", "loaded", "compared:", "exported:"]
    assert lines[2].endswith("on 4 examples")
    assert lines[3] == "exported: run/export/onnx/1"
    options = ["--class-names", "names.txt", "--outputs", "likely=prob", "--to", "out"]
    assert told("export", script, "--run", "run", *options)[-1] == "exported: out/1"
    assert json.loads(Path("out/1/towerpack.json").read_text())["source"]["step"] == 5

    short = ["run/export/onnx", "out", "--batch", "1,4", "--seconds", "0.05"]
    rows = [json.loads(line) for line in told("bench", *short, "--json")]
    ours = [row for row in rows if row["runtime"] != "openvino"]  # where it is installed
    assert [(row["runtime"], row["batch"], row["signature"]) for row in ours] == [
        ("onnx", 1, "serving_default"),
        ("onnx", 4, "serving_default"),
        ("tensorflow", 1, "tensors"),
        ("tensorflow", 4, "tensors"),
    ]
    for row in rows:
        assert 0 < row["median_s"] <= row["p95_s"] < 1 and row["calls"] >= 5
        assert 0 < row["per_s"] < 2 * row["batch"] * row["calls"] / 0.05
    header, *table = told("bench", *short)
    assert header.split()[:3] == ["model", "runtime", "batch"]
    assert len(table) == len(rows)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["export", "run"], "was started by a script"),
        (["export", "{}", "--run", "run", "--outputs", "probe"], "prob"),
        (["export", "{}", "--run", "run", "--examples", "names.txt"], "contains no weights"),
        (
            ["export", "{}", "--run", "run/checkpoints/step-00000005"],
            "--run must be a run directory",
        ),
        (["bench", "run"], "does not contain an exported model"),
        (["bench", "run", "--batch", "0"], "must be positive integers separated by commas, got 0"),
    ],
)
def test_mistakes(script: str, arguments: list[str], message: str) -> None:
    given = [script if argument == "{}" else argument for argument in arguments]
    with pytest.raises(TowerpackError, match=message):
        CliRunner().invoke(app, given, catch_exceptions=False)
