"""What the rows of some steps have in common, and `towerpack runs spikes` from end to end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import fisher_exact
from typer.testing import CliRunner

from towerpack import ConfigError
from towerpack.callbacks import ModelSaver, PeriodicTrigger
from towerpack.cli import app
from towerpack.cli._user_code import load_module
from towerpack.dataflow import Origin
from towerpack.training import SimpleTrainer, StepBatch, TrainConfig
from towerpack.training.replay.batch import Replay
from towerpack.training.replay.rows import Feature, common_features, fisher_chance, row_costs

RNG = np.random.default_rng(3)


def batch(labels: Any, *, source: str = "a.tar", texts: Any = ((),)) -> StepBatch:
    origins = [Origin(source, i, f"{source}, row {i}") for i in RNG.integers(0, 10**6, len(labels))]
    return StepBatch(1, 0, {"label": np.array(labels), "text": np.array(texts)}, origins)


def test_common_features() -> None:
    others = [batch(RNG.integers(0, 4, 32)) for _ in range(20)]
    alike = [batch(RNG.integers(0, 4, 32)) for _ in range(5)]
    assert common_features(alike, others) == []
    found = common_features([batch([3] * 32), *alike], others)
    assert [f[:2] for f in found] == [("label", "3")]
    labels = np.concatenate([b.arrays["label"] for b in others])
    assert found[0].other_share == np.mean(labels == 3)
    found = common_features([*alike, batch(RNG.integers(0, 4, 32), source="b.tar")], others)
    assert {*found} == {Feature(kind, "b.tar", 1 / 6, 0.0) for kind in ("source", "file")}
    short, long = np.tile([7, 0, 0, 0, 0], (40, 1)), np.tile([7, 7, 0, 7, -1], (40, 1))
    found = common_features([batch([0] * 40, texts=long)], [batch([0] * 40, texts=short)])
    assert found == [Feature("length of text", "below 4", 1.0, 0.0)]


@pytest.mark.parametrize("counts", [(3, 10, 5, 100), (0, 5, 5, 9), (8, 8, 0, 40), (2, 30, 4, 60)])
def test_chance_is_that_of_fishers_exact_test(counts: tuple[int, int, int, int]) -> None:
    count, n, other, m = counts
    table = [[count, n - count], [other, m - other]]
    assert fisher_chance(*counts) == pytest.approx(fisher_exact(table, "greater").pvalue)


SCRIPT = """
import keras, numpy as np, tensorflow as tf
from towerpack.dataflow import BatchData, DataFromArrays, ShuffleData
from towerpack.model import ModelDesc
from towerpack.nn import FullyConnected

x = np.random.default_rng(0).normal(size=(200, 3)).astype("f4")
y = x.sum(axis=1)
y[94] = 50

def flow():
    return BatchData(ShuffleData(DataFromArrays(x, y)), 10)

class Model(ModelDesc):
    def inputs(self):
        return [tf.TensorSpec([10, 3], tf.float32, "x"), tf.TensorSpec([10], tf.float32, "y")]

    def build_graph(self, x, y):
        return tf.reduce_mean(tf.square(tf.squeeze(FullyConnected("fc", x, 1), -1) - y))

    def optimizer(self):
        return keras.optimizers.SGD(1e-4)
"""


def show(*arguments: Any) -> str:
    command = ["runs", "spikes", *map(str, arguments)]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_the_row_that_caused_the_spikes_is_named(tmp_path: Path) -> None:
    script, run = tmp_path / "program.py", tmp_path / "run"
    script.write_text(SCRIPT)
    program: Any = load_module(str(script))

    def train(run_dir: Path, epochs: int, callbacks: Any, **settings: Any) -> None:
        config = TrainConfig(
            dataflow=program.flow(), model=program.Model(), run_dir=run_dir, max_epoch=epochs,
            callbacks=callbacks, seed=0, **settings,
        )  # fmt: skip
        SimpleTrainer(config).train()

    train(run, 8, [PeriodicTrigger(ModelSaver(keep=None), every_k_steps=20)])
    text = show(run, "--top", 8)
    steps = [int(line.split()[0]) for line in text.splitlines() if line.strip()[:1].isdigit()]
    # One step of each epoch.
    assert sorted((step - 1) // 20 for step in steps) == list(range(8))
    assert "pass --flow" in text
    flow = f"{script}:flow"
    text = show(run, "--top", 8, "--flow", flow, "--losses")
    rows = [line.split() for line in text.splitlines()]
    assert ["row", "DataFromArrays(200)", "94", "10", "0"] in rows
    named = [row for row in rows if row[-2:] == ["DataFromArrays(200)", "94"]]
    weights = [f"step-{n:08}" for n in (20, *range(20, 160, 20))]
    assert [row[1] for row in named[-8:]] == weights
    train(tmp_path / "unsaved", 2, [])
    with pytest.raises(ConfigError, match="has no checkpoint"):
        show(tmp_path / "unsaved", "--flow", flow, "--losses")
    # The weights of step 20 are those of the run: the cost of step 21 is the mean of its rows'.
    replay = Replay(run, program.flow())
    ((_, _, costs),) = row_costs(replay, program.Model(), [21])
    cost = np.fromfile(run / "step_costs.f32", "<f4")[20]
    assert np.mean(costs) == pytest.approx(cost, rel=1e-5)
    train(tmp_path / "without", 1, [], step_costs=False)
    for arguments, message in (
        ([run, "--losses"], "program that made .* is needed"),
        ([tmp_path / "without"], "no costs of single steps"),
        ([tmp_path], "no costs of single steps"),
        ([run, "--number", "costs"], "has no 'costs'"),
    ):
        with pytest.raises(ConfigError, match=message):
            show(*arguments)
