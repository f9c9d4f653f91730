"""Which digits are alike: points in the plane, learned from "same" and "different" alone.

The same network, with the same weights, maps three digits to points: one, another of its class, and
one of another class. Two costs are compared:

* contrastive (Hadsell et al. 2006): pairs of a class are pulled together, others pushed apart
  until a margin lies between them;
* triplet (Schroff et al. 2015): the other class must be farther away than the same, by a margin.

    python examples/similarity.py [--steps N] [--out DIR]

Reached, 2026-11-22, after 2,000 steps: 1.1 % (contrastive) and 2.8 % (triplet) of test triplets
misordered, 3.9 % and 6.7 % of test digits nearest to another class. 75 s of processor time.
"""

import argparse

import keras
import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure

from towerpack import ModelDesc
from towerpack.callbacks import ClassificationError, InferenceRunner, ModelSaver, ScalarStats
from towerpack.dataflow import BatchData, DataFlow, MapData, datasets
from towerpack.inference import Predictor
from towerpack.nn import Conv2D, LinearWrap, argscope, expose, reuse_scope, scope
from towerpack.training import SimpleTrainer, TrainConfig


def contrastive(same: tf.Tensor, different: tf.Tensor, margin: float = 2.0) -> tf.Tensor:
    """Mean cost of two pairs for each row, given their squared distances."""
    apart = tf.nn.relu(margin - tf.sqrt(different + 1e-6))
    return tf.reduce_mean(same + tf.square(apart)) / 2


def triplet(same: tf.Tensor, different: tf.Tensor, margin: float = 2.0) -> tf.Tensor:
    """Mean cost of a triplet for each row, given its squared distances."""
    return tf.reduce_mean(tf.nn.relu(margin + same - different))


class Model(ModelDesc):
    def __init__(self, loss=contrastive):
        self.loss = loss

    def inputs(self):
        names = ("anchor", "positive", "negative")
        return [tf.TensorSpec([None, 8, 8], tf.float32, name) for name in names]

    def embed(self, image):
        with scope("embed"), argscope(Conv2D, kernel_size=3, activation=tf.nn.relu):
            return (
                LinearWrap(tf.expand_dims(image, -1))
                .Conv2D("conv0", 32).Conv2D("conv1", 32).MaxPooling("pool0", 2)
                .FullyConnected("fc0", 64, activation=tf.nn.relu).FullyConnected("fc1", 2)()
            )  # fmt: skip

    def build_graph(self, anchor, positive, negative):
        point = expose("point", self.embed(anchor))
        with reuse_scope():
            others = [self.embed(image) for image in (positive, negative)]
        same, different = (tf.reduce_sum(tf.square(point - other), 1) for other in others)
        expose("misordered", same >= different)
        return self.loss(same, different)

    def optimizer(self):
        return keras.optimizers.Adam(1e-3)


def triplets(part: str) -> DataFlow:
    digits = datasets.Digits(part, shuffle=part == "train")
    members = [np.flatnonzero(digits.labels == c) for c in range(10)]

    def draw(dp, rng):
        image, label = dp
        other = (label + rng.integers(1, 10)) % 10
        rows = [rng.choice(members[c]) for c in (label, other)]
        return [image, *(digits.images[rows] / np.float32(16))]

    return MapData(digits, draw, rng=True)


def nearest_error(train: np.ndarray, test: np.ndarray, labels: list[np.ndarray]) -> float:
    """Share of test points whose nearest training point is of another class."""
    distance = np.square(test[:, None] - train).sum(2)
    return float(np.mean(labels[0][distance.argmin(1)] != labels[1]))


def main(steps: int, out: str) -> None:
    epoch = min(steps, 200)
    figure = Figure(figsize=(12, 6), layout="constrained")
    parts = [datasets.Digits(name) for name in ("train", "test")]
    labels = [part.labels for part in parts]
    for loss, axis in zip((contrastive, triplet), figure.subplots(1, 2), strict=True):
        run_dir = f"{out}/{loss.__name__}"
        config = TrainConfig(
            model=Model(loss), dataflow=BatchData(triplets("train"), 64),
            callbacks=[ModelSaver(keep=1),
                       InferenceRunner(BatchData(triplets("test"), 120),
                                       [ScalarStats("cost"), ClassificationError("misordered")])],
            steps_per_epoch=epoch, max_epoch=steps // epoch, seed=0, run_dir=run_dir)  # fmt: skip
        trainer = SimpleTrainer(config)
        trainer.train()
        place = Predictor(Model(loss), run_dir, outputs="point")
        train, test = (place(part.images / np.float32(16)) for part in parts)
        error = nearest_error(train, test, labels)
        print(f"{loss.__name__}: {trainer.monitors.latest('val/error'):.1%} of test triplets are "
              f"misordered, {error:.1%} of test digits nearest to another class")  # fmt: skip
        axis.set_title(f"{loss.__name__}: test digits, 1-NN error {error:.1%}")
        axis.scatter(*test.T, s=0)  # sets the limits
        for point, label in zip(test, labels[1], strict=True):
            axis.annotate(str(label), point, color=f"C{label}", ha="center", va="center")
    figure.savefig(f"{out}/similarity.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--out", default="runs/similarity")
    main(**vars(parser.parse_args()))
