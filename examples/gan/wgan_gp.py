"""WGAN-GP (Gulrajani et al. 2017): a critic whose slope is kept near 1, five moves to one.

    python examples/gan/wgan_gp.py [--steps N] [--out DIR]

Grids of samples after each epoch: DIR/samples. What it made last: DIR/samples.npy.

Reached (10,000 steps, of which the generator took 2,000; 185 s of processor time; 23 November 2026,
2 shared cores of an AMD EPYC): the classifier of `towerpack demo` finds 6.5 to 13.7 % of each digit
among 1,000 samples, with a mean confidence of 0.878 (judge.py).
"""

import argparse
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from towerpack.callbacks import ModelSaver
from towerpack.dataflow import BatchData, JoinData, MapData
from towerpack.dataflow.datasets import Digits
from towerpack.gan import GANModelDesc, RandomZData, SampleGrid, SeparateGANTrainer, losses
from towerpack.inference import Predictor
from towerpack.nn import (
    BatchNorm,
    Conv2D,
    Conv2DTranspose,
    FullyConnected,
    auto_reuse_scope,
    expose,
    get_current_tower_context,
    scope,
    summary,
)
from towerpack.training import TrainConfig, WeightEMA

BATCH, Z = 64, 64


class Model(GANModelDesc):
    def inputs(self):
        return [
            tf.TensorSpec([None, 8, 8, 1], tf.float32, "image"),
            tf.TensorSpec([None, Z], tf.float32, "z"),
        ]

    def generator(self, z):
        x = FullyConnected("fc", z, 2 * 2 * 128, use_bias=False)
        x = tf.reshape(tf.nn.relu(BatchNorm("bn0", x)), [-1, 2, 2, 128])
        x = Conv2DTranspose("deconv1", x, 64, 4, strides=2, use_bias=False)
        x = tf.nn.relu(BatchNorm("bn1", x))
        x = Conv2DTranspose("deconv2", x, 32, 4, strides=2, use_bias=False)
        x = tf.nn.relu(BatchNorm("bn2", x))
        return Conv2D("out", x, 1, 3, activation=tf.nn.tanh)

    @auto_reuse_scope
    def critic(self, image):
        """One number for each image, by itself: without batch normalisation."""
        x = tf.nn.leaky_relu(Conv2D("conv0", image, 32, 4, strides=2))
        x = tf.nn.leaky_relu(Conv2D("conv1", x, 64, 4, strides=2))
        x = tf.nn.leaky_relu(FullyConnected("fc0", x, 128))
        return FullyConnected("fc1", x, 1)

    def build_graph(self, image, z):
        with scope("gen"):
            fake = expose("fake", self.generator(z))
        seed = get_current_tower_context().step_seed("penalty")
        with scope("discrim"):
            costs = losses.wasserstein(self.critic(image), self.critic(fake))
            penalty = losses.gradient_penalty(self.critic, image, fake, seed)
        summary.moving_average("wasserstein_distance", -costs.discriminator)
        return self.set_costs(
            generator=costs.generator, discriminator=costs.discriminator + 10 * penalty
        )

    def optimizer(self):
        return {
            "g_optimizer": WeightEMA(keras.optimizers.Adam(5e-4, 0.0, 0.9), 0.99),
            "d_optimizer": keras.optimizers.Adam(5e-4, 0.0, 0.9),
        }


def as_image(datapoint):
    """From 0..1 to -1..1, with a channel; the label is dropped."""
    return [datapoint[0][..., None] * 2 - 1]


def main(arguments=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10_000, help="of the critic")
    parser.add_argument("--out", type=Path, default=Path("runs/wgan_gp"))
    args = parser.parse_args(arguments)
    images = BatchData(MapData(Digits("train"), as_image), BATCH)
    config = TrainConfig(
        model=Model(),
        dataflow=JoinData([images, RandomZData([BATCH, Z])]),
        callbacks=[ModelSaver(keep=1), SampleGrid("gen/fake", RandomZData([100, Z]), ema=True)],
        steps_per_epoch=-(-args.steps // 10),
        max_epoch=10,
        seed=0,
        run_dir=args.out,
    )
    SeparateGANTrainer(config, g_period=5).train()
    z = np.random.default_rng(0).uniform(-1, 1, (1000, Z)).astype(np.float32)
    samples = Predictor(Model(), args.out, outputs="gen/fake", ema=True, batch_size=100)(z)
    np.save(args.out / "samples.npy", samples)
    return samples


if __name__ == "__main__":
    main()
