"""A training with workers that lingers in one phase, which `test_signals.py` waits for.

python signalled_program.py RUN_DIR PHASE
"""

from __future__ import annotations

import os
import sys
import time

import keras
import numpy as np
import tensorflow as tf

from towerpack.callbacks import Callback, InferenceRunner, ModelSaver, ScalarStats
from towerpack.dataflow import BatchData, DataFromArrays, MapData, PrefetchData
from towerpack.inputs import QueueInput
from towerpack.nn import FullyConnected
from towerpack.training import SimpleTrainer, TrainConfig

SPECS = [tf.TensorSpec([None, 3], tf.float32, "x"), tf.TensorSpec([None], tf.float32, "y")]
RUN_DIR, PHASE = sys.argv[1:]


def say(phase: str) -> None:
    if phase == PHASE:
        print(os.getpid(), phase, flush=True)


class Linger(Callback):
    """Long work in a trigger."""

    def __init__(self, phase: str) -> None:
        self._phase = phase

    def trigger(self) -> None:
        say(self._phase)
        for _ in range(40 if self._phase == PHASE else 0):
            time.sleep(0.05)
            self.trainer.check_interrupt()


class Said(ScalarStats):
    def begin(self) -> None:
        say("evaluating")
        super().begin()


class SaidInput(QueueInput):
    def reserve(self, steps, poll):
        say("waiting for data")
        return super().reserve(steps, poll)


def build(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    say("building")
    time.sleep(2 if PHASE == "building" else 0)
    return tf.reduce_mean(tf.square(FullyConnected("fc", x, 1)[:, 0] - y / 160))


def data(phase: str) -> PrefetchData:
    """Made by workers; from the middle on slowly, if it is that phase."""

    def one(point):
        time.sleep(0.1 if phase == PHASE and point[1] >= 80 else 0)
        return point

    y = np.arange(160, dtype=np.float32)
    return PrefetchData(BatchData(MapData(DataFromArrays(np.ones((160, 3), "f4"), y), one), 8), 2)


SimpleTrainer(
    TrainConfig(
        data=SaidInput(data("waiting for data"), queue_size=2),
        model=(SPECS, build, lambda: keras.optimizers.SGD(0.01)),
        callbacks=[
            Linger("in a trigger"),
            InferenceRunner(data("evaluating"), Said("cost")),
            ModelSaver(),
            Linger("saving"),
        ],
        max_epoch=100_000,
        seed=0,
        run_dir=RUN_DIR,
    )
).train()
