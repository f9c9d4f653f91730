"""A critic and a generator with all that has a state; killed and started again by `test_gan.py`.

python gan_program.py kill RUN_DIR      is killed at some step
python gan_program.py compare RUN_DIR   finishes that run, and repeats it undisturbed
python gan_program.py devices DIR       two devices, and one with batches twice as large
"""

# ruff: noqa: E402 - devices are made before anything uses TensorFlow

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from small_training import assert_same
from towerpack.callbacks import Callback, ModelSaver, PeriodicTrigger
from towerpack.checkpoint import list_checkpoints
from towerpack.dataflow import BatchData, DataFromArrays, JoinData, ShuffleData
from towerpack.gan import (
    GANModelDesc,
    GANTrainer,
    RandomZData,
    SampleGrid,
    SeparateGANTrainer,
    losses,
    spectral_norm,
)
from towerpack.nn import (
    BatchNorm,
    Conv2D,
    FullyConnected,
    auto_reuse_scope,
    expose,
    get_current_tower_context,
    scope,
)
from towerpack.training import TrainConfig, WeightEMA

IMAGES = np.random.default_rng(0).uniform(-1, 1, (160, 8, 8, 1)).astype(np.float32)
KILLED_AT = 19


class Model(GANModelDesc):
    """`rich`: with what a batch on two devices computes otherwise than one on one device."""

    def __init__(self, *, rich: bool) -> None:
        self.rich = rich

    def inputs(self):
        return [
            tf.TensorSpec([None, 8, 8, 1], tf.float32, "image"),
            tf.TensorSpec([None, 4], tf.float32, "z"),
        ]

    @auto_reuse_scope
    def critic(self, image):
        with spectral_norm("discrim/conv0/kernel"):
            x = tf.nn.leaky_relu(Conv2D("conv0", image, 8, 3, strides=2))
        return FullyConnected("fc", x, 1)

    def build_graph(self, image, z):
        with scope("gen"):
            x = FullyConnected("fc0", z, 16)
            x = tf.nn.relu(BatchNorm("bn0", x)) if self.rich else tf.nn.relu(x)
            fake = tf.reshape(FullyConnected("fc1", x, 64, activation=tf.tanh), [-1, 8, 8, 1])
            expose("fake", fake)
        with scope("discrim"):
            costs = losses.hinge(self.critic(image), self.critic(fake))
            seed = get_current_tower_context().step_seed("penalty")
            penalty = losses.gradient_penalty(self.critic, image, fake, seed)
        if self.rich:
            costs = costs._replace(discriminator=costs.discriminator + penalty)
        return self.set_costs(**costs._asdict())

    def optimizer(self) -> Any:
        if not self.rich:
            return keras.optimizers.SGD(0.05, momentum=0.9)
        return {
            "g_optimizer": WeightEMA(keras.optimizers.SGD(1e-3, momentum=0.9), 0.9),
            "d_optimizer": keras.optimizers.SGD(1e-3, momentum=0.9),
        }


class Kill(Callback):
    def trigger_step(self) -> None:
        if self.trainer.global_step == KILLED_AT:
            os.kill(os.getpid(), signal.SIGKILL)


def config(run_dir: Path, batch: int, rich: bool, *callbacks: Any, **kwargs: Any) -> TrainConfig:
    images = ShuffleData(DataFromArrays(IMAGES)) if rich else DataFromArrays(IMAGES)
    noise = RandomZData([4])  # For each image, so that it does not depend on the batch's size.
    return TrainConfig(
        model=Model(rich=rich),
        dataflow=BatchData(JoinData([images, noise]), batch),
        callbacks=[*callbacks],
        monitors=[],
        max_epoch=2,
        seed=3,
        run_dir=run_dir,
        **kwargs,
    )


def separate(run_dir: Path, *callbacks: Any) -> SeparateGANTrainer:
    saver = PeriodicTrigger(ModelSaver(), every_k_steps=8)
    grid = SampleGrid("gen/fake", RandomZData([9, 4]), ema=True)
    trainer = SeparateGANTrainer(
        config(run_dir, 8, True, saver, grid, *callbacks, deterministic=True), g_period=3
    )
    trainer.train()
    return trainer


def compare(run_dir: Path) -> None:
    newest = max(checkpoint.step for checkpoint in list_checkpoints(run_dir))
    assert 0 < newest <= KILLED_AT
    parts = separate(run_dir)
    whole = separate(run_dir.with_name("whole"))
    for ema in (False, True):
        assert_same(parts.get_weights(ema=ema), whole.get_weights(ema=ema))
    for name in ("epoch-0001.png", "epoch-0002.png"):
        drawn = [t.run_dir.joinpath("samples", name).read_bytes() for t in (parts, whole)]
        assert drawn[0] == drawn[1]
    print("continued as if nothing had been", flush=True)


def devices(directory: Path) -> None:
    one = GANTrainer(config(directory / "one", 16, False))
    two = GANTrainer(config(directory / "two", 8, False), ["CPU:0", "CPU:1"])
    for trainer in (one, two):
        trainer.train()
    ours, theirs = two.get_weights(), one.get_weights()
    assert ours.keys() == theirs.keys()
    for name in ours:
        if name.endswith("bias"):  # They begin at 0.
            assert np.abs(theirs[name]).max() > 1e-3, name
        np.testing.assert_allclose(ours[name], theirs[name], atol=2e-5, err_msg=name)
    print("two devices are as one")


if __name__ == "__main__":
    case, where = sys.argv[1], Path(sys.argv[2])
    if case == "kill":
        separate(where / "run", Kill())
    compare(where / "run")
    devices(where)
