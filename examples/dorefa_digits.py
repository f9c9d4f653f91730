"""DoReFa-Net (Zhou et al. 2016, arXiv:1606.06160) on handwritten digits: weights of one bit.

Layers compute with `E|w| sign(w)`, activations have two bits, and gradients pass both roundings
as if they were not there; what is trained are the float weights behind. As in the paper, the first
and the last layer stay whole.

Test error with bits W,A of weights and activations, seeds 0, 1, 2 (360 digits; two cores of an EPYC
server, 30 epochs in 16 s of processor time each; 2026-11-22):

    1,2    2.22 %, 1.39 %, 1.11 %
    32,32  1.39 %, 1.94 %, 0.56 %

    python examples/dorefa_digits.py [--bits W,A] [--epochs N] [--run-dir DIR]
"""

import argparse

import keras
import numpy as np
import tensorflow as tf

from towerpack import ModelDesc
from towerpack.callbacks import ClassificationError, InferenceRunner, ModelSaver
from towerpack.dataflow import BatchData
from towerpack.dataflow.datasets import Digits
from towerpack.nn import Conv2D, LinearWrap, argscope, expose, remap_variables
from towerpack.training import SimpleTrainer, TrainConfig


def straight_through(function):
    """Compute `function`; let gradients pass unchanged (Bengio et al. 2013)."""
    return tf.custom_gradient(lambda x: (function(x), lambda dy: dy))


def rounded(x, bits):
    """Numbers from 0 to 1, rounded to `2^bits - 1` steps."""
    steps = float(2**bits - 1)
    return straight_through(lambda x: tf.round(x * steps) / steps)(x)


def weights(w, bits):
    if bits == 32:
        return tf.convert_to_tensor(w)
    if bits == 1:
        scale = tf.stop_gradient(tf.reduce_mean(tf.abs(w)))
        return straight_through(lambda w: tf.where(w < 0, -scale, scale))(tf.convert_to_tensor(w))
    w = tf.tanh(w)
    return 2 * rounded(w / (2 * tf.reduce_max(tf.abs(w))) + 0.5, bits) - 1


def activations(x, bits):
    return tf.nn.relu(x) if bits == 32 else rounded(tf.clip_by_value(x, 0.0, 1.0), bits)


class Model(ModelDesc):
    def __init__(self, weight_bits=1, activation_bits=2):
        self.bits = weight_bits, activation_bits

    def inputs(self):
        return [
            tf.TensorSpec([None, 8, 8], tf.float32, "image"),
            tf.TensorSpec([None], tf.int64, "label"),
        ]

    def build_graph(self, image, label):
        def remapped(variable):
            if not variable.name.endswith("/kernel:0") or variable.name.startswith(("conv0", "fc")):
                return variable
            return weights(variable, self.bits[0])

        def activate(x):
            return activations(x, self.bits[1])

        with remap_variables(remapped), argscope(Conv2D, kernel_size=3, use_bias=False):
            logits = (
                LinearWrap(tf.expand_dims(image, -1))
                .Conv2D("conv0", 32).BatchNorm("bn0").apply(activate)
                .Conv2D("conv1", 64).MaxPooling("pool1", 2).BatchNorm("bn1").apply(activate)
                .Conv2D("conv2", 64).MaxPooling("pool2", 2).BatchNorm("bn2").apply(activate)
                .FullyConnected("fc", 10)()
            )  # fmt: skip
        expose("incorrect", tf.argmax(logits, 1) != label)
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(label, logits))

    def optimizer(self):
        return keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(5e-3, 30 * 39))


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bits", default="1,2", help="of weights and activations; 32 for floats")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--steps", type=int, help="in an epoch; by default all digits")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run-dir", default="runs/dorefa_digits")
    given = parser.parse_args(arguments)
    trainer = SimpleTrainer(TrainConfig(
        model=Model(*map(int, given.bits.split(","))),
        dataflow=BatchData(Digits("train"), 32),
        callbacks=[
            ModelSaver(keep=1),
            InferenceRunner(BatchData(Digits("test", shuffle=False), 64, remainder=True),
                            ClassificationError("incorrect", "error")),
        ],
        steps_per_epoch=given.steps, max_epoch=given.epochs, seed=given.seed,
        run_dir=given.run_dir,
    ))  # fmt: skip
    trainer.train()
    kernel = trainer.get_weights()["conv1/kernel"]
    values = len(np.unique(weights(kernel, int(given.bits.split(",")[0]))))
    error = trainer.monitors.latest("val/error")
    print(f"test error {error:.2%}; conv1 computes with {values} different weights")


if __name__ == "__main__":
    main()
