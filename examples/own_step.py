"""A step of your own: two networks against each other, on our loop, callbacks and checkpoints.

A generator learns the normal distribution with mean 3 and deviation 0.5; a discriminator tells its
numbers from real ones. Each has a cost and an optimizer of its own.

    python examples/own_step.py [RUN_DIR]
"""

import sys

import keras
import numpy as np
import tensorflow as tf

from towerpack import ModelDesc
from towerpack.callbacks import ModelSaver
from towerpack.dataflow import BatchData, DataFromArrays, ShuffleData
from towerpack.inference import Predictor
from towerpack.nn import FullyConnected, expose, reuse_scope, scope
from towerpack.training import TrainConfig, Trainer, TrainStep


class Model(ModelDesc):
    def inputs(self):
        return [tf.TensorSpec([64, 1], tf.float32, "real"), tf.TensorSpec([64, 4], tf.float32, "z")]

    def discriminate(self, x):
        with scope("discrim"):
            # Pairs, as single numbers would not tell it the deviation.
            h = FullyConnected("fc0", tf.reshape(x, [-1, 8]), 32, activation=tf.nn.relu)
            return FullyConnected("fc1", h, 1)

    def build_graph(self, real, z):
        with scope("gen"):
            h = FullyConnected("fc0", z, 16, activation=tf.nn.relu)
            fake = expose("fake", FullyConnected("fc1", h, 1))
        logits_real = self.discriminate(real)
        with reuse_scope():
            logits_fake = self.discriminate(fake)
        bce = keras.losses.BinaryCrossentropy(from_logits=True)
        ones, zeros = tf.ones_like(logits_fake), tf.zeros_like(logits_fake)
        expose("gen_cost", bce(ones, logits_fake))
        return expose("discrim_cost", bce(ones, logits_real) + bce(zeros, logits_fake))

    def optimizer(self):
        return {
            "gen": keras.optimizers.Adam(2e-3, 0.5),
            "discrim": keras.optimizers.Adam(2e-3, 0.5),
        }


class TwoPlayers(TrainStep):
    def build(self, setup):
        self.players = {}
        for name in ("gen", "discrim"):
            own = {n: v for n, v in setup.trainable.items() if n.startswith(f"{name}/")}
            self.players[name] = own, setup.optimizer(name, own)

    def __call__(self, context, batch):
        outputs = context.tower(*batch).outputs
        for name, (variables, optimizer) in self.players.items():
            context.minimize(outputs[f"{name}_cost"], variables, optimizer)


def main(run_dir="runs/own_step"):
    rng = np.random.default_rng(0)
    real = rng.normal(3.0, 0.5, (6400, 1)).astype(np.float32)
    z = rng.normal(size=(6400, 4)).astype(np.float32)
    data = BatchData(ShuffleData(DataFromArrays(real, z)), 64)
    config = TrainConfig(
        model=Model(), dataflow=data, callbacks=[ModelSaver(keep=1)],
        max_epoch=20, seed=0, run_dir=run_dir)  # fmt: skip
    Trainer(config, step=TwoPlayers()).train()
    fake = Predictor(Model(), run_dir, outputs="gen/fake")(z[:64])
    print(f"generated: mean {fake.mean():.2f} (3.00), deviation {fake.std():.2f} (0.50)")


if __name__ == "__main__":
    main(*sys.argv[1:])
