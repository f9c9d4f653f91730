"""A deterministic training that is killed and started again by `test_kill.py`.

    python resumable_program.py RUN_DIR OUTPUT.npz

It says on stdout where it is, so that the test can choose its moments.
"""

from __future__ import annotations

import sys

import keras
import numpy as np
import tensorflow as tf

from towerpack.callbacks import (
    Callback,
    ClassificationError,
    InferenceRunner,
    MinSaver,
    ModelSaver,
    PeriodicTrigger,
    ScalarStats,
    ScheduledHyperParamSetter,
)
from towerpack.dataflow import BatchData, DataFromArrays, LocallyShuffleData, MapData, ShuffleData
from towerpack.model import ModelDesc
from towerpack.nn import BatchNorm, Conv2D, Dropout, FullyConnected, MaxPooling, expose, summary
from towerpack.training import SimpleTrainer, TrainConfig

EPOCHS, STEPS = 4, 45


class Model(ModelDesc):
    """Something of everything that has a state."""

    def __init__(self) -> None:
        self.keras_part = keras.Sequential(
            [keras.layers.Dense(32, activation="relu"), keras.layers.Dropout(0.3)]
        )
        # Made, and its weights drawn, before there is a run with a seed.
        self.keras_head = keras.Sequential([keras.Input((32,)), keras.layers.Dense(16)])

    def inputs(self):
        return [
            tf.TensorSpec([None, 12, 12, 1], tf.float32, "image"),
            tf.TensorSpec([None], tf.int64, "label"),
        ]

    def build_graph(self, image, label):
        x = Conv2D("conv0", image, 16, 3, activation=tf.nn.relu)
        x = BatchNorm("bn0", x)
        x = MaxPooling("pool0", x, 2)
        x = FullyConnected("fc0", x, 256, activation=tf.nn.relu)
        x = Dropout("drop0", x, 0.4)
        x = self.keras_head(self.keras_part(x))
        logits = FullyConnected("fc1", x, 4) + tf.compat.v1.get_variable("offset", [4])
        wrong = tf.cast(tf.argmax(logits, 1) != label, tf.float32)
        expose("incorrect", wrong)
        summary.moving_average("train_error", tf.reduce_mean(wrong))
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(label, logits))

    def optimizer(self):
        return keras.optimizers.SGD(2e-3, momentum=0.9)


class Say(Callback):
    """Tells the test where we are."""

    def trigger(self) -> None:
        print(f"at {self.trainer.global_step}", flush=True)


def jitter(batch, rng):
    image, label = batch
    return image + rng.normal(0, 0.1, image.shape).astype(np.float32), label


def data(n: int, seed: int):
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 4, n)
    image = rng.normal(0, 1, (n, 12, 12, 1)).astype(np.float32)
    image += label[:, None, None, None] * 0.4
    return image, label.astype(np.int64)


def main(run_dir: str, output: str) -> None:
    flow = ShuffleData(DataFromArrays(*data(1000, 1)))
    flow = BatchData(LocallyShuffleData(flow, 100), 16)
    flow = MapData(flow, jitter, rng=True)
    evaluation = BatchData(DataFromArrays(*data(300, 2)), 64, remainder=True)
    trainer = SimpleTrainer(
        TrainConfig(
            dataflow=flow,
            model=Model(),
            callbacks=[
                PeriodicTrigger(ModelSaver(keep=3), every_k_steps=10),
                PeriodicTrigger(Say(), every_k_steps=5),
                InferenceRunner(
                    evaluation, [ScalarStats("cost"), ClassificationError("incorrect")]
                ),
                MinSaver("val/error"),
                ScheduledHyperParamSetter("learning_rate", [(1, 1e-3), (3, 1e-4)]),
            ],
            steps_per_epoch=STEPS,
            max_epoch=EPOCHS,
            seed=7,
            deterministic=True,
            run_dir=run_dir,
        )
    )
    trainer.train()
    history = {
        f"history/{name}": np.array(trainer.monitors.history(name))
        for name in ("cost", "train_error", "val/cost", "val/error", "learning_rate")
    }
    np.savez(output, **trainer.get_weights(), **history)
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
