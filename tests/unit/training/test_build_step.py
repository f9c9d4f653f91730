"""A trainer's step in a loop of the user's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from small_training import Model, X, Y, train
from towerpack import ConfigError, LayerError, SpecError
from towerpack.training import SharedVariables, SupervisedStep, TrainStep, build_step

TWO = SharedVariables([None, None])


def batches(size: int = 8) -> Any:
    return [(X[i : i + size], Y[i : i + size]) for i in range(0, len(X), size)]


def weights(step: Any) -> dict[str, np.ndarray]:
    return {name: v.numpy() for name, v in step.tower.store.named_variables().items()}


def test_it_does_what_a_trainer_does(tmp_path: Path) -> None:
    trainer = train(tmp_path, max_epoch=1)
    for compiled in (False, True):
        step = build_step(Model(), seed=5)
        one: Any = tf.function(step, autograph=False) if compiled else step
        for batch in batches():
            assert np.isfinite(one(*map(tf.constant, batch))["cost"])
        for name, value in trainer.get_weights().items():
            np.testing.assert_allclose(weights(step)[name], value, rtol=1e-5, atol=1e-6)
        assert int(step.global_step) == trainer.global_step == 6


def test_replicas_share_a_batch_and_average() -> None:
    runs = [
        build_step(Model(lambda: keras.optimizers.SGD(0.05), rate=0.0), seed=5, distribution=where)
        for where in (None, TWO)
    ]
    for batch in batches():
        one, two = (step(*batch) for step in runs)
        assert one.keys() == two.keys() == {"cost", "out", "large"}
        np.testing.assert_allclose(two["out"], one["out"], rtol=1e-4, atol=1e-5)
        assert float(two["cost"]) == pytest.approx(float(one["cost"]), rel=1e-4)
    one, two = map(weights, runs)
    for name, value in one.items():
        np.testing.assert_allclose(two[name], value, rtol=1e-4, atol=1e-6)
    with pytest.raises(SpecError, match="multiple of the number of replicas, 2"):
        runs[1](X[:7], Y[:7])
    with pytest.raises(SpecError, match="'x'"):
        runs[0](X[:, :2], Y)


class Half(TrainStep):
    def build(self, setup: Any) -> None:
        self.part = {n: v for n, v in setup.trainable.items() if n.startswith("fc1")}
        self.optimizer = setup.optimizer("late", self.part)

    def __call__(self, context: Any, batch: Any) -> None:
        context.minimize(context.tower(*batch).cost, self.part, self.optimizer)


def test_own_steps_outputs_and_what_is_to_be_saved() -> None:
    optimizer = {"late": keras.optimizers.SGD(0.1, momentum=0.9)}
    step = build_step(Model(), optimizer, step=Half(), outputs=["fc0/output"], xla=True)
    before = weights(step)
    assert step(X[:4], Y[:4]).keys() == {"cost", "fc0/output"}
    moved = {n for n, value in weights(step).items() if not np.array_equal(value, before[n])}
    assert moved == {"fc1/kernel", "fc1/bias"}
    saved = step.variables()
    assert list(saved) == ["model", "late", "step"] and int(saved["step"]["global_step"]) == 1
    assert {"fc0/kernel", "fc1/kernel"} < saved["model"].keys()


class Broken(Half):
    def __call__(self, context: Any, batch: Any) -> None:
        raise ArithmeticError


def test_mistakes() -> None:
    with pytest.raises(ArithmeticError):  # at once, not in the first step
        build_step(Model(), {"late": "sgd"}, step=Broken())
    with pytest.raises(LayerError, match="'nothing'"):
        build_step(Model(), outputs=["nothing"])
    with pytest.raises(ConfigError, match="does not use"):
        build_step(Model(), {"optimizer": "sgd", "more": "sgd"})
    rate = keras.Variable(1.0)
    with pytest.raises(LayerError, match="input 'x' needs rows to split"):
        scalar = [tf.TensorSpec([], tf.float32, "x")]
        build_step((scalar, lambda x: x * rate, "sgd"), distribution=TWO)


def test_the_old_name_of_the_available_optimizers() -> None:
    class Older(SupervisedStep):
        def build(self, setup: Any) -> None:
            setup.given = {"optimizer": setup.given["optimizer"]}
            assert setup.available is setup.given
            with pytest.raises(AttributeError, match="'taken'"):
                _ = setup.taken
            super().build(setup)

    assert "optimizer" in build_step(Model(), step=Older()).variables()
