"""A training over several processes: a chief, a parameter server and workers, by `TF_CONFIG`.

python cluster_program.py DIRECTORY STEPS PEER_TIMEOUT [SAVE_EVERY]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from small_training import SPECS, config, flow
from towerpack.callbacks import Callback, InferenceRunner, ModelSaver, PeriodicTrigger, ScalarStats
from towerpack.nn import BatchNorm, Dropout, FullyConnected, summary
from towerpack.training import ParameterServerTrainer

# Made before there is a cluster.
HIDDEN = keras.layers.Dense(4, activation="relu")


def build(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    h = Dropout("drop", BatchNorm("bn", HIDDEN(x)), 0.1)
    error = tf.square(tf.squeeze(FullyConnected("fc", h, 1), -1) - y)
    summary.histogram("errors", error)
    cost = tf.reduce_mean(error)
    summary.moving_average("smooth", cost)
    return cost


class Told(Callback):
    """Says after each call how far training is."""

    def setup(self, trainer: Any) -> None:
        self.fetch("fc/output")
        trainer.schedule("learning_rate", lambda step: 0.02 if step == 30 else None)

    def after_step(self, outputs: Any) -> None:
        assert outputs["fc/output"].shape == (8, 1)

    def after_call(self) -> None:
        rate = self.trainer.hyper_param("learning_rate").get()
        print(f"step {self.trainer.global_step} rate {rate:.3f}", flush=True)


def main(run_dir: str, steps: str, peer_timeout: str, save_every: str = "") -> None:
    callbacks = [Told(), ModelSaver(), InferenceRunner(flow(), ScalarStats("cost"))]
    if save_every:
        callbacks.append(PeriodicTrigger(ModelSaver(), every_k_steps=int(save_every)))
    settings = config(
        Path(run_dir),
        callbacks,
        model=(SPECS, build, keras.optimizers.Adam(0.05)),
        steps_per_epoch=int(steps),
        max_epoch=1,
    )
    # TensorFlow tells only so when a worker has been taken back.
    tf.get_logger().setLevel("INFO")
    trainer = ParameterServerTrainer(settings, peer_timeout=float(peer_timeout))
    trainer.train()
    if (wait := Path(run_dir, "wait")).exists():
        wait.unlink()
        while not Path(run_dir, "go").exists():
            time.sleep(0.05)
    print(f"cost {trainer.monitors.latest('val/cost'):.3f} at {trainer.global_step}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
