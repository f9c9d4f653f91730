"""Flow matching (Lipman et al. 2023): digits, or clothes, by class, from noise.

The network learns the velocity that moves noise along straight lines to pictures. To generate, a
solver follows the velocity from noise at time 0 to a picture at time 1. One label in ten is hidden
in training, so that generation can move away from the average class (Ho & Salimans 2022).

    python examples/flow_matching.py [--steps N] [--out DIR]
    python examples/flow_matching.py --fashion DIR_OF_THE_FOUR_FILES

Writes picture.png (ten of each class), samples.npy and labels.npy, for gan/judge.py.

Reached on scikit-learn's digits, judged by the classifier of `towerpack demo`: 1,500 steps (161 s
of processor time): mean confidence 0.999, 99.7 % of the class asked for, FID 12.9 in the
classifier's features. 600 steps (89 s): 0.981, 96.1 %, FID 21.7; DCGAN in 94 s: FID 49.8.
"""

import argparse
from pathlib import Path

import cv2
import keras
import numpy as np
import tensorflow as tf

from towerpack import ModelDesc
from towerpack.callbacks import ModelSaver, cosine_schedule
from towerpack.dataflow import BatchData, MapData, RepeatedData
from towerpack.dataflow.datasets import Digits, FashionMnist
from towerpack.inference import Predictor
from towerpack.nn import Conv2D, Conv2DTranspose, FullyConnected, GroupNorm, expose, scope
from towerpack.training import SimpleTrainer, TrainConfig, WeightEMA

NUM_CLASSES, HIDDEN = 10, 10  # the label of a hidden class
SOLVER_STEPS, GUIDANCE = 32, 1.5


class Model(ModelDesc):
    def __init__(self, side: int, width: int = 32) -> None:
        self.side, self.width = side, width

    def inputs(self):
        image = [None, self.side, self.side, 1]
        return [
            tf.TensorSpec(image, tf.float32, "point"),
            tf.TensorSpec([None], tf.float32, "time"),
            tf.TensorSpec([None], tf.int64, "label"),
            tf.TensorSpec(image, tf.float32, "target"),
        ]

    def build_graph(self, point, time, label, target):
        frequencies = tf.range(8, dtype=tf.float32) * np.pi / 2
        angles = time[:, tf.newaxis] * frequencies
        about = tf.concat([tf.sin(angles), tf.cos(angles), tf.one_hot(label, HIDDEN + 1)], 1)
        about = tf.nn.silu(FullyConnected("about", about, 128))
        width = self.width
        first = residual("block0", Conv2D("first", point, width, 3), about)
        x = Conv2D("down", first, width * 2, 3, strides=2)
        x = residual("block2", residual("block1", x, about), about)
        x = tf.concat([Conv2DTranspose("up", x, width, 4, strides=2), first], -1)
        x = residual("block3", Conv2D("joined", x, width, 1), about)
        velocity = expose(
            "velocity", Conv2D("last", tf.nn.silu(x), 1, 3, kernel_initializer="zeros")
        )
        return tf.reduce_mean((velocity - target) ** 2)

    def optimizer(self):
        return WeightEMA(keras.optimizers.Adam(2e-3), 0.995)


def residual(name, x, about):
    """Add two convolutions; a scale and shift depend on time and label."""
    channels = x.shape[-1]
    with scope(name):
        scale, shift = tf.split(FullyConnected("fc", about, 2 * channels)[:, None, None], 2, -1)
        y = Conv2D("conv0", tf.nn.silu(GroupNorm("gn0", x, groups=8)), channels, 3)
        y = tf.nn.silu(GroupNorm("gn1", y, groups=8) * (1 + scale) + shift)
        return x + Conv2D("conv1", y, channels, 3, kernel_initializer="zeros")


def on_the_way(dp, rng):
    """From images [n, h, w] and labels to points between noise and images, and their velocity."""
    image, label = dp[0][..., None] * 2 - 1, dp[1]
    noise = rng.standard_normal(image.shape, np.float32)
    time = rng.random(len(image), np.float32)
    share = time[:, None, None, None]
    hidden = np.where(rng.random(len(label)) < 0.1, HIDDEN, label)
    return [(1 - share) * noise + share * image, time, hidden, image - noise]


def generate(velocity, label: np.ndarray, side: int) -> np.ndarray:
    """Follow the velocity from noise to pictures [n, h, w, 1], with the midpoint rule."""
    x = np.random.default_rng(0).standard_normal([len(label), side, side, 1], np.float32)

    def guided(x, time):
        times = np.full(len(x), time, np.float32)
        free = velocity(x, times, np.full_like(label, HIDDEN))
        return free + GUIDANCE * (velocity(x, times, label) - free)

    for time in np.arange(SOLVER_STEPS, dtype=np.float32) / SOLVER_STEPS:
        middle = x + guided(x, time) / (2 * SOLVER_STEPS)
        x = x + guided(middle, time + 0.5 / SOLVER_STEPS) / SOLVER_STEPS
    return np.clip(x, -1, 1)


def main(arguments=None):
    """Train and generate; gives the mean of the pixels."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fashion", type=Path, help="folder of Fashion-MNIST's files")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=Path("runs/flow-matching"))
    args = parser.parse_args(arguments)
    data = FashionMnist("train", dir=args.fashion) if args.fashion else Digits("train")
    model = Model(side=28 if args.fashion else 8)
    config = TrainConfig(
        model=model,
        dataflow=MapData(BatchData(RepeatedData(data), 64), on_the_way, rng=True),
        callbacks=[ModelSaver(keep=1), cosine_schedule(2e-3, args.steps, warmup=args.steps // 20)],
        steps_per_epoch=args.steps // 4,
        max_epoch=4,
        seed=0,
        run_dir=args.out,
    )
    SimpleTrainer(config).train()
    label = np.arange(args.samples) % NUM_CLASSES
    velocity = Predictor(model, args.out, outputs="velocity", ema=True, batch_size=250)
    samples = generate(velocity, label, model.side)
    np.save(args.out / "samples.npy", samples)
    np.save(args.out / "labels.npy", label)
    side = model.side + 2
    tiles = np.pad(samples[:100, ..., 0], ((0, 0), (1, 1), (1, 1)), constant_values=-1)
    grid = tiles.reshape(10, NUM_CLASSES, side, side).transpose(1, 2, 0, 3).reshape([10 * side] * 2)
    picture = cv2.resize(grid, None, fx=4, fy=4, interpolation=cv2.INTER_NEAREST)
    cv2.imwrite(str(args.out / "picture.png"), np.rint((picture + 1) * 127.5).astype(np.uint8))
    return float(samples.mean())


if __name__ == "__main__":
    main()
