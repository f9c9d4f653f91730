"""CycleGAN (Zhu et al. 2017): another look for photographs, from examples that are no pairs.

One flow gives photographs as they are, the other gives other ones as if they were old: brownish and
with little colour. Two generators translate. Each has a discriminator that compares with the flow,
and what one makes of the other's picture has to be the original. As the true look is known, the
result is measured on stripes of the photographs that neither flow has; so are matched histograms.

    python examples/gan/cyclegan.py [--steps N] [--out DIR]

Reached, 2026-11-23: 27.3 dB to the old look, 23.0 dB from it; unchanged 18.8 dB, histograms matched
21.6 dB. Three minutes of processor time, two shared cores of an EPYC.
"""

import argparse
from pathlib import Path

import keras
import numpy as np
import skimage.data
import tensorflow as tf
from skimage.exposure import match_histograms
from sklearn.datasets import load_sample_images

from towerpack.callbacks import ModelSaver
from towerpack.dataflow import BatchData, DataFromList, JoinData, MapData, RepeatedData, ShuffleData
from towerpack.dataflow.images import AugmentImageComponent, Flip, RandomCrop
from towerpack.gan import GANModelDesc, GANTrainer, SampleGrid, losses
from towerpack.inference import Predictor
from towerpack.nn import (
    Conv2D,
    InstanceNorm,
    UpSampling,
    argscope,
    auto_reuse_scope,
    expose,
    scope,
)
from towerpack.training import TrainConfig

SIDE_PX = 48
STRIPE_PX = 64


def leaky(x):
    return tf.maximum(x, 0.2 * x)


class Model(GANModelDesc):
    def inputs(self):
        shape = [None, SIDE_PX, SIDE_PX, 3]
        return [tf.TensorSpec(shape, tf.float32, name) for name in ("a", "b")]

    @auto_reuse_scope
    def generate(self, x):
        with argscope(Conv2D, kernel_size=3):
            h = tf.nn.relu(InstanceNorm("in0", Conv2D("conv0", x, 16, kernel_size=5)))
            h = tf.nn.relu(InstanceNorm("in1", Conv2D("conv1", h, 32, strides=2)))
            for i in range(2):
                with scope(f"block{i}"):
                    r = tf.nn.relu(InstanceNorm("in0", Conv2D("conv0", h, 32)))
                    h += InstanceNorm("in1", Conv2D("conv1", r, 32))
            h = tf.nn.relu(InstanceNorm("in2", Conv2D("conv2", UpSampling("up", h, 2), 16)))
            # At first the identity: else dark and light may be exchanged, which no cost tells.
            return x + Conv2D("conv3", tf.concat([h, x], 3), 3, kernel_initializer="zeros")

    @auto_reuse_scope
    def discriminate(self, x):
        """A logit for each patch: [batch, 12, 12, 1]."""
        with argscope(Conv2D, kernel_size=4):
            h = leaky(Conv2D("conv0", x, 32, strides=2))
            h = leaky(InstanceNorm("in1", Conv2D("conv1", h, 64, strides=2)))
            return Conv2D("logit", h, 1)

    def build_graph(self, a, b):
        def by(player, network, x):
            with scope(player):
                return network(x)

        fake_b = expose("fake_b", by("gen/ab", self.generate, a))
        fake_a = expose("fake_a", by("gen/ba", self.generate, b))
        again_a, again_b = by("gen/ba", self.generate, fake_b), by("gen/ab", self.generate, fake_a)
        generator = discriminator = 0.0
        for name, real, fake, again in (("a", a, fake_a, again_a), ("b", b, fake_b, again_b)):
            logits = [by(f"discrim/{name}", self.discriminate, x) for x in (real, fake)]
            costs = losses.least_squares(*logits)
            generator += costs.generator + 5 * losses.cycle_consistency(real, again)
            discriminator += costs.discriminator
        return self.set_costs(generator=generator, discriminator=discriminator)

    def optimizer(self):
        return keras.optimizers.Adam(4e-4, 0.5)


def faded(photo):
    """The other look, of an old photograph: brownish, and a quarter of the colour is left."""
    grey = photo @ np.float32([0.299, 0.587, 0.114])
    return np.clip(photo / np.float32(4) + grey[..., None] * np.float32([0.8, 0.65, 0.45]), 0, 255)


def stripes():
    """Of the photographs, [h, 64, 3] uint8: for the one flow, for the other, and to measure."""
    parts = [], [], []
    own = (skimage.data.astronaut(), skimage.data.chelsea(), skimage.data.coffee())
    for photo in (*load_sample_images().images, *own):
        for i in range(photo.shape[1] // STRIPE_PX):
            parts[i % 3].append([photo[:, i * STRIPE_PX : (i + 1) * STRIPE_PX]])
    return parts


def scaled(photo):
    return photo / np.float32(127.5) - 1


def psnr(x, y):
    return float(10 * np.log10(4 / np.mean((x - y) ** 2)))


def main(arguments=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--out", type=Path, default=Path("runs/cyclegan"))
    args = parser.parse_args(arguments)
    *parts, test = stripes()
    flows = [RepeatedData(ShuffleData(DataFromList(part))) for part in parts]
    flows = [AugmentImageComponent(f, [RandomCrop(SIDE_PX), Flip(horiz=True)]) for f in flows]
    flows = [MapData(flows[0], lambda dp: [scaled(dp[0])]),
             MapData(flows[1], lambda dp: [scaled(faded(dp[0]))])]  # fmt: skip
    tops = [(s, y) for [s] in test for y in range(0, len(s) - SIDE_PX + 1, SIDE_PX)]
    crops = np.stack([s[y : y + SIDE_PX, 8 : 8 + SIDE_PX] for s, y in tops])
    a, b = scaled(crops), scaled(faded(crops))
    chosen = np.linspace(0, len(a) - 1, 24).astype(int)
    config = TrainConfig(
        model=Model(), dataflow=BatchData(JoinData(flows), 4),
        callbacks=[SampleGrid(["a", "fake_b", "b", "fake_a"],
                              DataFromList([(a[chosen], b[chosen])]), columns=4),
                   ModelSaver(keep=1)],
        steps_per_epoch=-(-args.steps // 4), max_epoch=4, seed=0, run_dir=args.out)  # fmt: skip
    GANTrainer(config).train()

    to_b, to_a = Predictor(Model(), args.out, outputs=["fake_b", "fake_a"], batch_size=50)(a, b)
    looks = scaled(faded(np.concatenate([s[:256] for [s] in parts[1]], 1)))
    matched = match_histograms(np.concatenate(a, 1), looks, channel_axis=2)
    matched = np.stack(np.split(matched, len(a), 1))
    print(f"to the old look {psnr(to_b, b):.1f} dB, from it {psnr(to_a, a):.1f} dB; "
          f"unchanged {psnr(a, b):.1f}, histograms matched {psnr(matched, b):.1f}")  # fmt: skip
    return psnr(to_b, b)


if __name__ == "__main__":
    main()
