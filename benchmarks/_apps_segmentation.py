"""Contenders of `apps.py` for segmentation: training steps of U-Net, unet-ours or unet-theirs."""

from __future__ import annotations

import sys
import tempfile

import keras
import numpy as np
import tensorflow as tf
from _measure import Gate

SIZE, BATCH, CLASSES, STEPS = 96, 8, 12, 3
WIDTHS = (32, 64, 128, 256)
RNG = np.random.default_rng(0)
IMAGE = RNG.uniform(-1, 1, (BATCH, SIZE, SIZE, 3)).astype(np.float32)
LABEL = RNG.integers(0, CLASSES, (BATCH, SIZE, SIZE)).astype(np.int32)


def ours() -> None:
    from towerpack import Callback, SimpleTrainer, TrainConfig
    from towerpack.dataflow import DataFromList, RepeatedData
    from towerpack.zoo.unet import net

    def inputs() -> list[tf.TensorSpec]:
        return [
            tf.TensorSpec([BATCH, SIZE, SIZE, 3], tf.float32, "image"),
            tf.TensorSpec([BATCH, SIZE, SIZE], tf.int32, "label"),
        ]

    def build(image: tf.Tensor, label: tf.Tensor) -> tf.Tensor:
        logits = net(image, CLASSES)
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(label, logits))

    class Turns(Callback):
        def before_train(self) -> None:
            self.fetch("cost")
            self.gate = Gate(STEPS)
            self.gate.open()

        def trigger_epoch(self) -> None:
            if not self.gate.epoch_done(lambda: self.trainer.monitors.latest("cost")):
                raise SystemExit

    with tempfile.TemporaryDirectory() as folder:
        SimpleTrainer(
            TrainConfig(
                model=(inputs, build, lambda: keras.optimizers.SGD(1e-2, momentum=0.9)),
                dataflow=RepeatedData(DataFromList([(IMAGE, LABEL)], shuffle=False)),
                callbacks=[Turns()],
                steps_per_epoch=STEPS,
                max_epoch=10**6,
                run_dir=folder,
            )
        ).train()


def theirs() -> None:
    layers = keras.layers
    options = {"kernel_size": 4, "strides": 2, "padding": "same"}
    x = entry = keras.Input([SIZE, SIZE, 3])
    skipped = []
    for width in WIDTHS:
        x = layers.Conv2D(width, activation="relu", kernel_initializer="he_normal", **options)(x)
        skipped.append(x)
    for width, like in zip(WIDTHS[2::-1], skipped[2::-1], strict=True):
        x = layers.Conv2DTranspose(width, activation="relu", **options)(x)
        x = layers.Concatenate()([x, like])
    model = keras.Model(entry, layers.Conv2DTranspose(CLASSES, **options)(x))
    model.compile(
        optimizer=keras.optimizers.SGD(1e-2, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    data = tf.data.Dataset.from_tensors((IMAGE, LABEL)).repeat()
    gate = Gate(STEPS)

    class Turns(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
            if not gate.epoch_done(lambda: (logs or {})["loss"]):
                self.model.stop_training = True

    if gate.open():
        model.fit(data, epochs=10**6, steps_per_epoch=STEPS, verbose=0, callbacks=[Turns()])


{"unet-ours": ours, "unet-theirs": theirs}[sys.argv[1]]()
