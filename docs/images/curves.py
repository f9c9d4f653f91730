"""Draw `curves.svg`, three runs on scikit-learn's digits, and `schedules.svg`, learning rates.

    python docs/images/curves.py

The runs train the network of the README for 15 epochs, with three schedules.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

from towerpack import (
    BatchData,
    Callback,
    DataFromArrays,
    FullyConnected,
    InferenceRunner,
    ModelDesc,
    ScalarStats,
    ShuffleData,
    SimpleTrainer,
    TrainConfig,
)
from towerpack.callbacks import (
    cosine_schedule,
    one_cycle_schedule,
    piecewise_schedule,
    polynomial_schedule,
)

HERE = Path(__file__).parent
COLORS = ["#0b6e99", "#c2410c", "#6b7280", "#3f7d20"]

digits = load_digits()
x, y = digits.data.astype(np.float32) / 16, digits.target.astype(np.int64)
STEPS = 15 * (1437 // 32)


class Model(ModelDesc):
    """Two layers."""

    def inputs(self) -> list[tf.TensorSpec]:
        """Return pictures and labels."""
        image = tf.TensorSpec([None, 64], tf.float32, "image")
        return [image, tf.TensorSpec([None], tf.int64, "label")]

    def build_graph(self, image: Any, label: Any) -> Any:
        """Return the cost."""
        hidden = FullyConnected("fc0", image, 64, activation=tf.nn.relu)
        logits = FullyConnected("fc1", hidden, 10)
        cost = tf.nn.sparse_softmax_cross_entropy_with_logits(label, logits)
        return tf.reduce_mean(cost)

    def optimizer(self) -> keras.optimizers.Optimizer:
        """Return SGD with momentum."""
        return keras.optimizers.SGD(0.1, momentum=0.9)


class Rates(Callback):
    """The learning rate of each step."""

    acts_between_steps = True

    def before_train(self) -> None:
        """Start with no rates."""
        self.rates: list[float] = []

    def before_step(self) -> None:
        """Record the rate."""
        self.rates.append(self.trainer.hyper_param("learning_rate").get())


def train(schedule: Callback, folder: str) -> tuple[dict[str, Any], list[float]]:
    """Return histories by name, and the rate of each step."""
    rates = Rates()
    flow = BatchData(ShuffleData(DataFromArrays(x[:1437], y[:1437])), 32)
    test = BatchData(DataFromArrays(x[1437:], y[1437:]), 32, remainder=True)
    evaluate = InferenceRunner(test, ScalarStats("cost"))
    config = TrainConfig(
        model=Model(),
        dataflow=flow,
        callbacks=[schedule, evaluate, rates],
        max_epoch=15,
        seed=0,
        run_dir=folder,
    )
    trainer = SimpleTrainer(config)
    trainer.train()
    return {name: trainer.monitors.history(name) for name in ("cost", "val/cost")}, rates.rates


def main() -> None:
    """Train with each schedule, and draw."""
    plt.rcParams.update({"font.size": 13, "svg.hashsalt": "towerpack", "svg.fonttype": "path"})
    schedules = {
        "cosine, warmup": cosine_schedule(0.1, steps=STEPS, warmup=60),
        "one cycle": one_cycle_schedule(0.2, steps=STEPS),
        "piecewise": piecewise_schedule([(0, 0.1), (300, 0.01), (500, 0.001)], warmup=60),
        "polynomial": polynomial_schedule(0.1, steps=STEPS, warmup=60),
    }
    runs = {}
    with tempfile.TemporaryDirectory() as folder:
        for i, (name, schedule) in enumerate(schedules.items()):
            runs[name] = train(schedule, f"{folder}/{i}")

    figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    for color, (name, (_, rates)) in zip(COLORS, runs.items(), strict=True):
        axes.plot(rates, label=name, color=color, linewidth=2)
    axes.set(xlabel="step", ylabel="learning rate")
    axes.legend(frameon=False, loc="upper right")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(HERE / "schedules.svg", metadata={"Date": None})

    figure, panels = plt.subplots(1, 2, figsize=(6.4, 3.6), layout="constrained", sharey=True)
    for axes, metric in zip(panels, ("cost", "val/cost"), strict=True):
        for color, (name, (histories, _)) in zip(COLORS, list(runs.items())[:3], strict=False):
            axes.plot(*zip(*histories[metric], strict=True), label=name, color=color, linewidth=2)
        axes.set(xlabel="step", yscale="log")
        axes.set_title(metric, loc="left", fontsize=13)
        axes.spines[["top", "right"]].set_visible(False)
    panels[1].legend(frameon=False)
    figure.savefig(HERE / "curves.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
