"""One of a changing number of workers of a run; started by `test_elastic.py`.

    python elastic_program.py RUN_DIR KIND EPOCHS

Each worker records the rows that it consumed in each step, with the number of its start.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from towerpack.callbacks import Callback, ModelSaver, PeriodicTrigger
from towerpack.dataflow import BatchData, DataFromArrays, PrefetchData, ShuffleData
from towerpack.inputs import SplitInput
from towerpack.nn import FullyConnected, expose
from towerpack.training import MultiWorkerTrainer, TrainConfig, join_cluster

ROWS = 80
BATCH = {"split": 20, "flow": 10, "prefetched": 10}
TEAM = join_cluster().team


class Record(Callback):
    """Records rows, and takes time, so that something can happen to a worker."""

    chief_only = False
    acts_between_steps = True

    def setup(self, trainer: Any) -> None:
        self._path = Path(sys.argv[1], f"rows-{TEAM.index}.jsonl")
        self.fetch("row")

    def after_step(self, outputs: Any) -> None:
        rows = outputs["row"].astype(int).tolist()
        line = {"step": self.trainer.global_step, "rows": rows, "life": os.environ["LIFE"]}
        with self._path.open("a") as file:
            print(json.dumps(line), file=file)
        time.sleep(float(os.environ.get("PAUSE", "0.1")))


def build(row: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    expose("row", row)
    h = FullyConnected("fc0", x, 8, activation=tf.nn.tanh)
    target = tf.reduce_sum(x, -1, keepdims=True)
    return tf.reduce_mean(tf.square(FullyConnected("fc1", h, 1) - target))


def data(kind: str) -> Any:
    x = np.random.default_rng(0).normal(size=(ROWS, 3)).astype(np.float32)
    flow: Any = ShuffleData(DataFromArrays(np.arange(ROWS), x))
    flow = BatchData(flow, BATCH[kind])
    if kind == "split":
        return SplitInput(flow)
    return PrefetchData(flow, 1) if kind == "prefetched" else flow


if __name__ == "__main__":
    run, kind = Path(sys.argv[1]), sys.argv[2]
    specs = [tf.TensorSpec([None], tf.int64, "row"), tf.TensorSpec([None, 3], tf.float32, "x")]
    run.mkdir(parents=True, exist_ok=True)
    trainer = MultiWorkerTrainer(
        TrainConfig(
            data=data(kind),
            model=(specs, build, lambda: keras.optimizers.SGD(0.05, momentum=0.9)),
            callbacks=[
                Record(),
                PeriodicTrigger(ModelSaver(keep=2), every_k_steps=3),
                ModelSaver(),
            ],
            max_epoch=int(sys.argv[3]),
            seed=1,
            run_dir=run,
            monitors=[],
        )
    )
    trainer.train()
    np.savez(run / f"end-{TEAM.index}.npz", **trainer.get_weights())
