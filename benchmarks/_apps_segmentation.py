"""Contenders of `apps.py` for segmentation: training steps of U-Net, unet-ours or unet-theirs."""

from __future__ import annotations

import sys

import keras
import numpy as np
import tensorflow as tf
from _fitting import fit, train_ours

SIZE, BATCH, CLASSES, STEPS = 96, 8, 12, 3
WIDTHS = (32, 64, 128, 256)
RNG = np.random.default_rng(0)
IMAGE = RNG.uniform(-1, 1, (BATCH, SIZE, SIZE, 3)).astype(np.float32)
LABEL = RNG.integers(0, CLASSES, (BATCH, SIZE, SIZE)).astype(np.int32)


def ours() -> None:
    from towerpack.zoo.unet import net

    def inputs() -> list[tf.TensorSpec]:
        return [
            tf.TensorSpec([BATCH, SIZE, SIZE, 3], tf.float32, "image"),
            tf.TensorSpec([BATCH, SIZE, SIZE], tf.int32, "label"),
        ]

    def build(image: tf.Tensor, label: tf.Tensor) -> tf.Tensor:
        logits = net(image, CLASSES)
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(label, logits))

    train_ours(inputs, build, 1e-2, (IMAGE, LABEL), STEPS)


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
    fit(model, data, STEPS, steps_per_epoch=STEPS)


{"unet-ours": ours, "unet-theirs": theirs}[sys.argv[1]]()
