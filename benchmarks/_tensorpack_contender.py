"""Tensorpack 0.11 as a contender of `training_overhead.py`; needs it installed.

    python _tensorpack_contender.py CASE SOURCE [STEPS-IN-AN-EPOCH]

Its layers do not work beside Keras 3 (those that matter here say "not available with Keras 3"), so
the models are plain TensorFlow, in its own graphs, towers, input sources and trainer. Batches come
ready-made: its BatchData would stack them example by example in Python.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import tensorflow.compat.v1 as tf
import tensorpack
from _measure import Gate
from _training_cases import CASES, CLASSES, RATE, Case, arguments
from tensorpack.train.base import StopTraining
from tensorpack.utils import logger


class Batches(tensorpack.DataFlow):
    def __init__(self, case: Case) -> None:
        self._batches = [list(batch) for batch in case.batches()]

    def __iter__(self) -> Iterator[list]:
        yield from self._batches

    def __len__(self) -> int:
        return len(self._batches)


def conv(name: str, x: tf.Tensor) -> tf.Tensor:
    with tf.variable_scope(name):
        shape = [3, 3, int(x.shape[-1]), 32]
        kernel = tf.get_variable("W", shape, initializer=tf.initializers.he_normal())
        bias = tf.get_variable("b", [32], initializer=tf.zeros_initializer())
        return tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, kernel, padding="SAME"), bias))


def dense(name: str, x: tf.Tensor, units: int) -> tf.Tensor:
    with tf.variable_scope(name):
        shape = [int(x.shape[-1]), units]
        kernel = tf.get_variable("W", shape, initializer=tf.initializers.he_normal())
        bias = tf.get_variable("b", [units], initializer=tf.zeros_initializer())
        return tf.nn.bias_add(tf.matmul(x, kernel), bias)


def lenet(x: tf.Tensor) -> tf.Tensor:
    x = tf.nn.max_pool2d(conv("conv0", x), 2, 2, "VALID")
    x = tf.nn.max_pool2d(conv("conv2", conv("conv1", x)), 2, 2, "VALID")
    x = tf.reshape(conv("conv3", x), [-1, 7 * 7 * 32])
    x = tf.nn.dropout(tf.nn.relu(dense("fc0", x, 512)), rate=0.5)
    return dense("fc1", x, CLASSES)


def mlp(x: tf.Tensor) -> tf.Tensor:
    return dense("fc1", tf.nn.relu(dense("fc0", x, 64)), CLASSES)


class Model(tensorpack.ModelDesc):
    def __init__(self, name: str) -> None:
        self._name = name

    def inputs(self) -> list[tf.TensorSpec]:
        examples = tf.TensorSpec([None, *CASES[self._name].shape], tf.float32, "x")
        return [examples, tf.TensorSpec([None], tf.int64, "y")]

    def build_graph(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        logits = {"lenet": lenet, "mlp": mlp}[self._name](x)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
        cost = tf.reduce_mean(losses)
        tf.summary.scalar("cost", cost)
        return cost

    def optimizer(self) -> tf.train.Optimizer:
        return tf.train.AdamOptimizer(RATE)


class Turns(tensorpack.Callback):
    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def _before_train(self) -> None:
        self._gate.open()

    def _trigger_epoch(self) -> None:
        if not self._gate.epoch_done(self._cost):
            raise StopTraining

    def _cost(self) -> float:
        try:
            return self.trainer.monitors.get_latest("cost")
        except KeyError:  # summaries of the first epoch come after this
            return float("nan")


def main() -> None:
    name, source, case = arguments()
    gate = Gate(case.steps)
    sources = {"queue": tensorpack.QueueInput, "feed": tensorpack.FeedInput}
    with tempfile.TemporaryDirectory() as directory:
        logger.set_logger_dir(directory + "/run")
        config = tensorpack.TrainConfig(
            model=Model(name),
            data=sources[source](Batches(case)),
            callbacks=[Turns(gate)],
            steps_per_epoch=case.steps,
            max_epoch=10**9,
        )
        tensorpack.launch_train_with_config(config, tensorpack.SimpleTrainer())


if __name__ == "__main__":
    main()
