"""Turns of trainings for contenders of `apps.py`: our trainer, and Keras's `fit`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf
from _measure import Gate


def train_ours(
    inputs: Callable[[], Sequence[tf.TensorSpec]],
    build: Callable[..., tf.Tensor],
    rate: float,
    datapoint: Sequence[Any],
    steps: int,
) -> None:
    """Train on one batch by SGD with momentum, for turns of so many steps."""
    from towerpack import Callback, SimpleTrainer, TrainConfig
    from towerpack.dataflow import DataFromList, RepeatedData

    class Turns(Callback):
        def before_train(self) -> None:
            self.fetch("cost")
            self.gate = Gate(steps)
            self.gate.open()

        def trigger_epoch(self) -> None:
            if not self.gate.epoch_done(lambda: self.trainer.monitors.latest("cost")):
                raise SystemExit

    with tempfile.TemporaryDirectory() as folder:
        SimpleTrainer(
            TrainConfig(
                model=(inputs, build, lambda: keras.optimizers.SGD(rate, momentum=0.9)),
                dataflow=RepeatedData(DataFromList([tuple(datapoint)], shuffle=False)),
                callbacks=[Turns()],
                steps_per_epoch=steps,
                max_epoch=10**6,
                run_dir=folder,
            )
        ).train()


def fit(model: keras.Model, data: tf.data.Dataset, steps: int, **options: Any) -> None:
    """Train a compiled model, for turns of so many steps, which are its epochs."""
    gate = Gate(steps)

    class Turns(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
            if not gate.epoch_done(lambda: (logs or {})["loss"]):
                self.model.stop_training = True

    if gate.open():
        model.fit(data, epochs=10**6, verbose=0, callbacks=[Turns()], **options)
