"""Conditional GAN (Mirza & Osindero 2014): a digit that was asked for.

    python examples/gan/cgan.py [--steps N] [--out DIR]

Both players get the label: the generator beside the noise, the discriminator as ten channels beside
the image. A row of the grids in DIR/samples has one of each digit. DIR/samples.npy: 100 of each.

Reached (4,000 steps, 69 s of processor time; 23 November 2026, 2 shared cores of an AMD EPYC): the
classifier of `towerpack demo` takes 99.3 % of 1,000 samples for what was asked for, with a mean
confidence of 0.995 (judge.py).
"""

import argparse
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from towerpack.callbacks import ModelSaver
from towerpack.dataflow import BatchData, DataFromArrays, JoinData, MapData
from towerpack.dataflow.datasets import Digits
from towerpack.gan import GANModelDesc, GANTrainer, RandomZData, SampleGrid
from towerpack.inference import Predictor
from towerpack.nn import (
    BatchNorm,
    Conv2D,
    Conv2DTranspose,
    FullyConnected,
    auto_reuse_scope,
    expose,
    scope,
)
from towerpack.training import TrainConfig, WeightEMA

BATCH, Z = 64, 64


class Model(GANModelDesc):
    def inputs(self):
        return [
            tf.TensorSpec([None, 8, 8, 1], tf.float32, "image"),
            tf.TensorSpec([None], tf.int64, "label"),
            tf.TensorSpec([None, Z], tf.float32, "z"),
        ]

    def generator(self, z, condition):
        x = tf.concat([z, condition], 1)
        x = FullyConnected("fc", x, 2 * 2 * 128, use_bias=False)
        x = tf.reshape(tf.nn.relu(BatchNorm("bn0", x)), [-1, 2, 2, 128])
        x = Conv2DTranspose("deconv1", x, 64, 4, strides=2, use_bias=False)
        x = tf.nn.relu(BatchNorm("bn1", x))
        x = Conv2DTranspose("deconv2", x, 32, 4, strides=2, use_bias=False)
        x = tf.nn.relu(BatchNorm("bn2", x))
        return Conv2D("out", x, 1, 3, activation=tf.nn.tanh)

    @auto_reuse_scope
    def discriminator(self, image, condition):
        planes = tf.tile(condition[:, None, None, :], [1, 8, 8, 1])
        x = tf.concat([image, planes], 3)
        x = tf.nn.leaky_relu(Conv2D("conv0", x, 32, 4, strides=2))
        x = Conv2D("conv1", x, 64, 4, strides=2, use_bias=False)
        x = tf.nn.leaky_relu(BatchNorm("bn1", x))
        return FullyConnected("fc", x, 1)

    def build_graph(self, image, label, z):
        condition = tf.one_hot(label, 10)
        with scope("gen"):
            fake = expose("fake", self.generator(z, condition))
        with scope("discrim"):
            logits_real = self.discriminator(image, condition)
            logits_fake = self.discriminator(fake, condition)
        return self.build_losses(logits_real, logits_fake)

    def optimizer(self):
        return {
            "g_optimizer": WeightEMA(keras.optimizers.Adam(4e-4, 0.5), 0.99),
            "d_optimizer": keras.optimizers.Adam(2e-4, 0.5),
        }


def as_image(datapoint):
    """The image from 0..1 to -1..1, with a channel."""
    image, label = datapoint
    return [image[..., None] * 2 - 1, label]


def main(arguments=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--out", type=Path, default=Path("runs/cgan"))
    args = parser.parse_args(arguments)
    data = BatchData(MapData(Digits("train"), as_image), BATCH)
    # One row of the grid after the other: 0 to 9 each.
    asked = BatchData(DataFromArrays(np.tile(np.arange(10), 8)), 80)
    config = TrainConfig(
        model=Model(),
        dataflow=JoinData([data, RandomZData([BATCH, Z])]),
        callbacks=[
            ModelSaver(keep=1),
            SampleGrid("gen/fake", JoinData([asked, RandomZData([80, Z])]), columns=10, ema=True),
        ],
        steps_per_epoch=-(-args.steps // 10),
        max_epoch=10,
        seed=0,
        run_dir=args.out,
    )
    GANTrainer(config).train()
    labels = np.tile(np.arange(10), 100)
    z = np.random.default_rng(0).uniform(-1, 1, (1000, Z)).astype(np.float32)
    generate = Predictor(Model(), args.out, outputs="gen/fake", ema=True, batch_size=100)
    samples = generate(label=labels, z=z)
    np.save(args.out / "samples.npy", samples)
    np.save(args.out / "labels.npy", labels)
    return samples


if __name__ == "__main__":
    main()
