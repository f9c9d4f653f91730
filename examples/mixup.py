"""MixUp (Zhang et al. 2018) and DisturbLabel (Xie et al. 2016): targets that are not certain.

With MixUp, a network learns from blends of two digits, and to name both shares. With DisturbLabel,
each label is replaced by a random one with a probability of 10 %. Trains the same network without
and with each of them on 252 of scikit-learn's digits, and compares them on 360 others.

    python examples/mixup.py [--steps N] [--out DIR]

Reached (1,500 steps each, 31 s of processor time on two cores; means of three seeds): 8.0 % errors
with and without MixUp; cross-entropy falls from 0.44 to 0.32, mean confidence from 0.98 to 0.90.
DisturbLabel, one seed: 5.6 % errors instead of 7.8 %, cross-entropy 0.34, mean confidence 0.82.
"""

import argparse
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from towerpack import ModelDesc
from towerpack.callbacks import InferenceRunner, ModelSaver, ScalarStats
from towerpack.dataflow import BatchData, DataFromArrays, MapData, RepeatedData, ShuffleData
from towerpack.dataflow.datasets import Digits
from towerpack.dataflow.images import MixUp
from towerpack.inference import Predictor
from towerpack.nn import Conv2D, LinearWrap, argscope, expose
from towerpack.training import SimpleTrainer, TrainConfig


class Model(ModelDesc):
    def inputs(self):
        return [
            tf.TensorSpec([None, 8, 8], tf.float32, "image"),
            tf.TensorSpec([None, 10], tf.float32, "share"),
        ]

    def build_graph(self, image, share):
        with argscope(Conv2D, filters=32, kernel_size=3, activation=tf.nn.relu):
            logits = (
                LinearWrap(tf.expand_dims(image, -1))
                .Conv2D("conv0")
                .Conv2D("conv1")
                .MaxPooling("pool", 2)
                .Conv2D("conv2", filters=64)
                .FullyConnected("fc0", 128, activation=tf.nn.relu)
                .FullyConnected("fc1", 10)()
            )
        expose("prob", tf.nn.softmax(logits))
        wrong = tf.argmax(logits, 1) != tf.argmax(share, 1)
        expose("error", tf.reduce_mean(tf.cast(wrong, tf.float32)))
        return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(share, logits))

    def optimizer(self):
        return keras.optimizers.Adam(1e-3)


def digits(name: str, each: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Images [n, 8, 8] from 0 to 1, and labels as shares [n, 10]: of all digits, or each k-th."""
    part = Digits(name, shuffle=False)
    images, labels = part.images[::each].astype(np.float32) / 16, part.labels[::each]
    return images, np.eye(10, dtype=np.float32)[labels]


def disturb(dp: tuple[np.ndarray, np.ndarray], rng: np.random.Generator) -> list[np.ndarray]:
    """Replace each share of a batch by that of a random digit, with a probability of 10 %."""
    image, share = dp
    random = np.eye(10, dtype=np.float32)[rng.integers(10, size=len(share))]
    return [image, np.where(rng.random([len(share), 1]) < 0.1, random, share)]


METHODS = {"nothing": None, "MixUp": MixUp(0.2), "DisturbLabel": disturb}


def train(method: str, steps: int, run_dir: Path) -> dict[str, float]:
    """What a network reaches on the test digits with a method of `METHODS`."""
    flow = BatchData(ShuffleData(DataFromArrays(*digits("train", each=5))), 50)
    if METHODS[method] is not None:
        flow = MapData(flow, METHODS[method], rng=True)
    test = digits("test")
    stats = InferenceRunner(BatchData(DataFromArrays(*test), 120), ScalarStats(["cost", "error"]))
    trainer = SimpleTrainer(
        TrainConfig(
            model=Model(),
            dataflow=RepeatedData(flow),
            callbacks=[stats, ModelSaver(keep=1)],
            steps_per_epoch=-(-steps // 4),
            max_epoch=4,
            seed=0,
            run_dir=run_dir,
        )
    )
    trainer.train()
    prob = Predictor(Model(), run_dir, outputs="prob")(test[0])
    return {
        "error": trainer.monitors.latest("val/error"),
        "cross-entropy": trainer.monitors.latest("val/cost"),
        "mean confidence": float(prob.max(axis=1).mean()),
    }


def main(arguments: list[str] | None = None) -> float:
    """Compare the methods; gives the error with MixUp."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--out", type=Path, default=Path("runs/mixup"))
    args = parser.parse_args(arguments)
    reached = {}
    for name in METHODS:
        reached[name] = train(name, args.steps, args.out / name)
    for name, numbers in reached.items():
        shown = ", ".join(f"{key} {value:.4f}" for key, value in numbers.items())
        print(f"with {name}: {shown}")
    return reached["MixUp"]["error"]


if __name__ == "__main__":
    main()
