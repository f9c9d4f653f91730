"""Time from the model to the end of its first steps, and how it grows: Towerpack and Keras `fit`.

    python benchmarks/start.py [--layers 30 100 400] [--rounds 3]

A chain of dense layers of 64 units, batch size 64, Adam, an epoch of ten steps. Each run is a fresh
process; the contenders take turns. Times exclude imports. CPU time is less noisy than wall time on
a shared machine.

Aims: at most 0.4 of the time of `fit`; at 1,000 layers at most 1.3 times the time per layer at 100.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np

UNITS, BATCH, STEPS, CLASSES = 64, 64, 10, 10
RNG = np.random.default_rng(0)
X = RNG.normal(size=(BATCH * STEPS, UNITS)).astype(np.float32)
Y = RNG.integers(0, CLASSES, BATCH * STEPS)


def fit(layers: int) -> None:
    import keras

    dense = [keras.layers.Dense(UNITS, activation="relu") for _ in range(layers)]
    model = keras.Sequential([keras.Input([UNITS]), *dense, keras.layers.Dense(CLASSES)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(1e-3), loss=loss)
    model.fit(X, Y, batch_size=BATCH, verbose=0)


def ours(layers: int) -> None:
    import keras
    import tensorflow as tf

    from towerpack import SimpleTrainer, TrainConfig
    from towerpack.dataflow import BatchData, DataFromArrays
    from towerpack.nn import FullyConnected

    def build(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        for i in range(layers):
            x = FullyConnected(f"layer{i}", x, UNITS, activation="relu")
        logits = FullyConnected("last", x, CLASSES)
        costs = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
        return tf.reduce_mean(costs)

    specs = [tf.TensorSpec([None, UNITS], tf.float32, "x"), tf.TensorSpec([None], tf.int64, "y")]
    model: Any = (specs, build, lambda: keras.optimizers.Adam(1e-3))
    with tempfile.TemporaryDirectory() as folder:
        data = BatchData(DataFromArrays([X, Y]), BATCH)
        config = TrainConfig(model=model, dataflow=data, max_epoch=1, run_dir=folder)
        SimpleTrainer(config).train()


CONTENDERS = {"ours": ours, "fit": fit}


def run(name: str, layers: int) -> None:
    """Print wall and CPU seconds of one contender, in this process."""
    import keras
    import tensorflow as tf

    import towerpack

    assert keras.optimizers and tf.function and towerpack.SimpleTrainer  # Load everything first.
    wall, cpu = time.perf_counter(), time.process_time()
    CONTENDERS[name](layers)
    print(time.perf_counter() - wall, time.process_time() - cpu)


def measure(name: str, layers: int) -> tuple[float, float]:
    command = [sys.executable, __file__, "--run", name, "--layers", str(layers)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    wall, cpu = done.stdout.splitlines()[-1].split()
    return float(wall), float(cpu)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--layers", type=int, nargs="+", default=[30, 100, 400])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--run", choices=CONTENDERS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        run(args.run, args.layers[0])
        return
    print("| layers | ours: s | CPU s | fit: s | CPU s | ours / fit | CPU | CPU ms per layer |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|")
    for layers in args.layers:
        rows = [[s for n in CONTENDERS for s in measure(n, layers)] for _ in range(args.rounds)]
        medians = [statistics.median(column) for column in zip(*rows, strict=True)]
        ratios = [statistics.median(row[i] / row[i + 2] for row in rows) for i in (0, 1)]
        texts = [*(f"{s:.1f}" for s in medians), *(f"{r:.2f}" for r in ratios)]
        print("|", " | ".join([str(layers), *texts, f"{1000 * medians[1] / layers:.0f}"]), "|")


if __name__ == "__main__":
    main()
