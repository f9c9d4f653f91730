"""A small regression, trained: what the tests of trainers share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from every_hook import EveryHook
from towerpack.callbacks import Callback, ModelSaver
from towerpack.checkpoint import load_checkpoint
from towerpack.dataflow import BatchData, DataFromArrays
from towerpack.model import ModelDesc
from towerpack.nn import Dropout, FullyConnected, expose, summary
from towerpack.training import SimpleTrainer, StopTraining, TrainConfig
from towerpack.training.loop.executor import Pace

RNG = np.random.default_rng(7)
X = RNG.normal(size=(48, 3)).astype(np.float32)
Y = (X @ np.array([1.0, -2.0, 0.5], np.float32) + 0.1).astype(np.float32)
SPECS = [tf.TensorSpec([None, 3], tf.float32, "x"), tf.TensorSpec([None], tf.float32, "y")]


class Model(ModelDesc):
    """Dropout, so that randomness counts; a hidden layer, so that slots differ."""

    def __init__(self, optimizer: Callable[[], Any] | None = None, *, rate: float = 0.25) -> None:
        self._make = optimizer or (lambda: keras.optimizers.SGD(0.05, momentum=0.9))
        self._rate = rate

    def inputs(self) -> list[tf.TensorSpec]:
        return list(SPECS)

    def build_graph(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        h = FullyConnected("fc0", x, 4, activation=tf.nn.relu)
        h = Dropout("drop", h, self._rate)
        out = tf.cast(tf.squeeze(FullyConnected("fc1", h, 1), -1), tf.float32)
        error = tf.square(out - y)
        expose("out", out)
        expose("large", tf.where(error > 1.0))
        cost = tf.reduce_mean(error)
        summary.moving_average("mean", cost, decay=0.9)
        summary.scalar("last", tf.reduce_max(error))
        return cost

    def optimizer(self) -> Any:
        return self._make()


def _line(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.square(tf.squeeze(FullyConnected("fc", x, 1), -1) - y))


LINE = (SPECS, _line, lambda: keras.optimizers.SGD(0.1))
"""The least that can be trained, for tests of what goes on around it."""


def flow(batch: int = 8, *, remainder: bool = False, x: np.ndarray = X) -> Any:
    return BatchData(DataFromArrays(x, Y), batch, remainder=remainder)


def config(run_dir: Path, callbacks: Sequence[Callback] = (), **kwargs: Any) -> TrainConfig:
    if "data" not in kwargs:
        kwargs.setdefault("dataflow", flow())
    kwargs.setdefault("model", Model())
    kwargs.setdefault("monitors", [])
    kwargs.setdefault("max_epoch", 2)
    kwargs.setdefault("seed", 5)
    return TrainConfig(run_dir=run_dir, callbacks=list(callbacks), **kwargs)


def train(run_dir: Path, callbacks: Sequence[Callback] = (), **kwargs: Any) -> SimpleTrainer:
    trainer = SimpleTrainer(config(run_dir, callbacks, **kwargs))
    trainer.train()
    return trainer


def assert_same(ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray]) -> None:
    """Bit for bit."""
    assert ours.keys() == theirs.keys()
    assert not [n for n in ours if np.asarray(ours[n]).tobytes() != np.asarray(theirs[n]).tobytes()]


class PacedBy(Pace):
    """Always the same number of steps, as far as the loop allows."""

    fixed = 4

    @property
    def steps(self) -> int:
        return self.fixed


class Recorded(EveryHook):
    """Keeps every step's outputs, and every hook with counters."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self.outputs: list[dict[str, Any]] = []
        self.log: list[tuple[str, int, int]] = []

    def setup(self, trainer: Any) -> None:
        self.fetch(*self._names)

    def after_step(self, outputs: Mapping[str, Any]) -> None:
        self.outputs.append(dict(outputs))
        super().after_step(outputs)

    def on(self, hook: str) -> None:
        self.log.append((hook, self.trainer.epoch, self.trainer.global_step))


class Do(EveryHook):
    """Calls a function in one hook, at one step."""

    def __init__(self, hook: str, action: Callable[[Callback], Any], at: int | None = None) -> None:
        self._hook, self._action, self._at = hook, action, at

    def acts_in(self, hook: str) -> bool:
        return hook in (self._hook, "trigger_epoch" if self._hook == "trigger" else self._hook)

    def on(self, hook: str) -> None:
        if hook == self._hook and self._at in (None, self.trainer.global_step):
            self._action(self)


def fail(callback: Callback) -> None:
    raise KeyError("on purpose")


def stop(callback: Callback) -> None:
    raise StopTraining("enough")


class Counts(Callback):
    def __init__(self) -> None:
        self.count = 0

    def after_step(self, outputs: Any) -> None:
        self.count += 1

    def state(self) -> Any:
        return {"count": self.count}

    def restore(self, state: Any) -> None:
        self.count = state["count"]


def assert_resumes(tmp_path: Path, **kwargs: Any) -> SimpleTrainer:
    """A run that ends at a step and is started again ends as one that was not disturbed."""
    make = kwargs.pop("model", Model)
    whole = train(tmp_path / "whole", [ModelSaver()], model=make(), **kwargs)
    ends = Do("trigger_step", stop, 7)
    ends.next_stop = lambda step: 7 if step < 7 else None  # type: ignore[method-assign]
    train(tmp_path / "parts", [ModelSaver(), ends], model=make(), **kwargs)
    assert load_checkpoint(tmp_path / "parts").step == 7
    parts = train(tmp_path / "parts", [ModelSaver()], model=make(), **kwargs)
    assert_same(parts.get_weights(), whole.get_weights())
    one, other = (load_checkpoint(tmp_path / name).optimizer for name in ("whole", "parts"))
    assert_same(
        {n: np.asarray(a) for n, a in other.items()}, {n: np.asarray(a) for n, a in one.items()}
    )
    return parts
