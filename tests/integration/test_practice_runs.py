"""`fast_dev_run`, `overfit_batches` and `eager`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from scaling import sample
from small_training import LINE, Model, Recorded, X, Y, assert_same, train
from towerpack.callbacks import InferenceRunner, ModelSaver, PeriodicTrigger, ScalarStats
from towerpack.checkpoint import load_checkpoint
from towerpack.dataflow import BatchData, DataFromArrays, MapData, ShuffleData
from towerpack.nn import summary


def counted(seen: list[int]) -> BatchData:
    def note(point: Any) -> Any:
        seen.append(1)
        return point

    return BatchData(MapData(DataFromArrays(X, Y), note), 8)


@pytest.mark.parametrize("n", sample([2, True]))
def test_fast_dev_run(tmp_path: Path, n: int) -> None:
    train(tmp_path / "run", [ModelSaver()], model=LINE, max_epoch=1)
    before = (tmp_path / "run" / "log.txt").read_text()
    for _ in range(2):
        seen: list[int] = []
        runner = InferenceRunner(counted(seen), ScalarStats("cost"))
        log = Recorded()
        trainer = train(
            tmp_path / "run",
            [
                PeriodicTrigger(runner, every_k_epochs=50),
                PeriodicTrigger(ModelSaver(), every_k_steps=1000),
                log,
            ],
            model=LINE,
            steps_per_epoch=500,
            max_epoch=100,
            fast_dev_run=n,
        )
        assert trainer.complete
        hooks = [hook for hook, _, _ in log.log]
        assert hooks.count("after_step") == n * n
        assert hooks.count("trigger") == hooks.count("before_epoch") == n
        assert len(trainer.monitors.history("val/cost")) == n
        assert len(seen) <= 8 * (n + 2) * n, "one batch is read ahead"
        assert trainer.run_dir == tmp_path / "run-fast-dev-run"
        assert load_checkpoint(trainer.run_dir).step == n * n
    assert (tmp_path / "run" / "log.txt").read_text() == before


def jitter(point: Any, rng: np.random.Generator) -> Any:
    x, y = point
    return x + rng.normal(0, 0.1, x.shape).astype(np.float32), y


def test_overfit_batches(tmp_path: Path) -> None:
    def run(name: str, max_epoch: int) -> tuple[Any, Recorded]:
        flow = MapData(ShuffleData(DataFromArrays(X, Y)), jitter, rng=True)
        elsewhere = BatchData(DataFromArrays(X + 100, Y), 8)
        recorded = Recorded("x")
        callbacks = [InferenceRunner(elsewhere, ScalarStats("cost")), ModelSaver(), recorded]
        model = Seen(optimizer=lambda: keras.optimizers.Adam(0.2), rate=0.0)
        kwargs = {"dataflow": BatchData(flow, 8), "model": model, "overfit_batches": 2}
        return train(tmp_path / name, callbacks, max_epoch=max_epoch, **kwargs), recorded

    whole, recorded = run("whole", 12)
    assert whole.steps_per_epoch == 2
    batches = [out["x"] for out in recorded.outputs]
    assert not np.array_equal(batches[0], batches[1])
    for i, batch in enumerate(batches):
        np.testing.assert_array_equal(batch, batches[i % 2])
    # Evaluated on the same: the cost there follows the cost of training.
    assert whole.monitors.latest("val/cost") < 2 * whole.monitors.latest("cost") < 1
    assert os.listdir(tmp_path) == ["whole-overfit-2"]
    run("parts", 4)
    parts, _ = run("parts", 12)
    assert_same(parts.get_weights(), whole.get_weights())


class Seen(Model):
    """Exposes its input; notes whether it runs on values."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.values: list[float] = []

    def build_graph(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        from towerpack.nn import expose

        expose("x", tf.identity(x))
        if tf.executing_eagerly():
            self.values.append(float(x.numpy().sum()))  # where a debugger would stop
        summary.histogram("inputs", x)
        return super().build_graph(x, y)


def test_eager_steps_are_those_of_the_graph(tmp_path: Path) -> None:
    def run(name: str, max_epoch: int = 2, **kwargs: Any) -> tuple[Any, Seen, Recorded]:
        model, recorded = Seen(), Recorded("cost", "large")
        runner = InferenceRunner(BatchData(DataFromArrays(X, Y), 8), ScalarStats("cost"))
        callbacks = [runner, ModelSaver(), recorded]
        trained = train(tmp_path / name, callbacks, model=model, max_epoch=max_epoch, **kwargs)
        return trained, model, recorded

    graph, untouched, theirs = run("graph")
    assert untouched.values == []
    eager, model, ours = run("eager", max_epoch=1, eager=True)
    assert model.values == pytest.approx([X[i : i + 8].sum() for i in range(0, 48, 8)], rel=1e-4)
    for a, b in zip(ours.outputs, theirs.outputs[:6], strict=True):
        np.testing.assert_allclose(a["cost"], b["cost"], rtol=1e-4)
        assert a["large"].shape == b["large"].shape
    names = ("cost", "val/cost", "mean")
    for name in names:
        assert eager.monitors.latest(name) == pytest.approx(
            graph.monitors.history(name)[0][1], 1e-4
        )
    both, *_ = run("eager")  # goes on in the graph
    for name, value in graph.get_weights().items():
        np.testing.assert_allclose(both.get_weights()[name], value, rtol=1e-4, atol=1e-6)
