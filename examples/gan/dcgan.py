"""DCGAN (Radford et al. 2016): digits, or clothes, from noise.

    python examples/gan/dcgan.py [--steps N] [--out DIR]
    python examples/gan/dcgan.py --fashion DIR_OF_THE_FOUR_FILES

Grids of samples after each epoch: DIR/samples. What it made last: DIR/samples.npy.

Reached on scikit-learn's digits (5,000 steps, 76 s of processor time, 3 minutes beside other work;
23 November 2026, 2 shared cores of an AMD EPYC): the classifier of `towerpack demo` tells 1,000
samples apart into ten classes of 7.2 to 14.7 % each, with a mean confidence of 0.917 (judge.py).

On Fashion-MNIST (--steps 2500, 4 minutes of processor time) shirts, trousers, shoes and bags can be
recognised, many with ragged edges.
"""

import argparse
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from towerpack.callbacks import ModelSaver, ScheduledHyperParamSetter
from towerpack.dataflow import BatchData, JoinData, MapData
from towerpack.dataflow.datasets import Digits, FashionMnist
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

BATCH, Z = 64, 32


class Model(GANModelDesc):
    def __init__(self, side=8, width=32):
        self.side, self.width = side, width

    def inputs(self):
        return [
            tf.TensorSpec([None, self.side, self.side, 1], tf.float32, "image"),
            tf.TensorSpec([None, Z], tf.float32, "z"),
        ]

    def generator(self, z):
        quarter, width = self.side // 4, self.width
        x = FullyConnected("fc", z, quarter * quarter * width * 4, use_bias=False)
        x = tf.nn.relu(BatchNorm("bn0", x))
        x = tf.reshape(x, [-1, quarter, quarter, width * 4])
        x = Conv2DTranspose("deconv1", x, width * 2, 4, strides=2, use_bias=False)
        x = tf.nn.relu(BatchNorm("bn1", x))
        x = Conv2DTranspose("deconv2", x, width, 4, strides=2, use_bias=False)
        x = tf.nn.relu(BatchNorm("bn2", x))
        return Conv2D("out", x, 1, 3, activation=tf.nn.tanh)

    @auto_reuse_scope
    def discriminator(self, image):
        x = tf.nn.leaky_relu(Conv2D("conv0", image, self.width, 4, strides=2))
        x = Conv2D("conv1", x, self.width * 2, 4, strides=2, use_bias=False)
        x = tf.nn.leaky_relu(BatchNorm("bn1", x))
        return FullyConnected("fc", x, 1)

    def build_graph(self, image, z):
        with scope("gen"):
            fake = expose("fake", self.generator(z))
        with scope("discrim"):
            logits_real, logits_fake = self.discriminator(image), self.discriminator(fake)
        return self.build_losses(logits_real, logits_fake)

    def optimizer(self):
        return {
            "g_optimizer": WeightEMA(keras.optimizers.Adam(4e-4, 0.5), 0.99),
            "d_optimizer": keras.optimizers.Adam(2e-4, 0.5),
        }


def as_image(datapoint):
    """From 0..1 to -1..1, with a channel; the label is dropped."""
    return [datapoint[0][..., None] * 2 - 1]


def main(arguments=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--fashion", type=Path, help="folder of Fashion-MNIST's files")
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--out", type=Path, default=Path("runs/dcgan"))
    args = parser.parse_args(arguments)
    data = FashionMnist("train", dir=args.fashion) if args.fashion else Digits("train")
    model = Model(side=28 if args.fashion else 8)
    images = BatchData(MapData(data, as_image), BATCH)
    config = TrainConfig(
        model=model,
        dataflow=JoinData([images, RandomZData([BATCH, Z])]),
        callbacks=[
            ModelSaver(keep=1),
            SampleGrid("gen/fake", RandomZData([100, Z]), ema=True),
            ScheduledHyperParamSetter(
                "g_optimizer/learning_rate", [(4, 4e-4), (10, 2e-5)], "linear"
            ),
            ScheduledHyperParamSetter(
                "d_optimizer/learning_rate", [(4, 2e-4), (10, 1e-5)], "linear"
            ),
        ],
        steps_per_epoch=-(-args.steps // 10),
        max_epoch=10,
        seed=0,
        run_dir=args.out,
    )
    GANTrainer(config).train()
    z = np.random.default_rng(0).uniform(-1, 1, (1000, Z)).astype(np.float32)
    samples = Predictor(model, args.out, outputs="gen/fake", ema=True, batch_size=100)(z)
    np.save(args.out / "samples.npy", samples)
    return samples


if __name__ == "__main__":
    main()
