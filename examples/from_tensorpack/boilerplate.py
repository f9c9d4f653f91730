"""A template with made-up data: replace the model and the data by yours.

The idea is that of Tensorpack's examples/boilerplate.py.
"""

import argparse

import tensorflow.compat.v1 as tf

from towerpack import *

BATCH_SIZE = 16
SIDE = 28
CHANNELS = 3


class Model(ModelDesc):
    def inputs(self):
        return [
            tf.TensorSpec((None, SIDE, SIDE, CHANNELS), tf.float32, "input1"),
            tf.TensorSpec((None, 1), tf.uint8, "input2"),
        ]

    def build_graph(self, input1, input2):
        output = FullyConnected("linear", input1 / 255, 1)
        error = output - tf.cast(input2, tf.float32)
        cost = tf.reduce_mean(tf.square(error), name="total_costs")
        summary.add_moving_summary(cost)
        return cost

    def optimizer(self):
        lr = tf.get_variable("learning_rate", initializer=5e-3, trainable=False)
        return tf.train.AdamOptimizer(lr)


def get_data():
    ds = FakeData(
        [[SIDE, SIDE, CHANNELS], [1]],
        1000,
        random=False,
        dtype=["float32", "uint8"],
        domain=[(0, 255), (0, 10)],
    )
    ds = MultiProcessRunnerZMQ(ds, 2)
    return BatchData(ds, BATCH_SIZE)


def get_config(epochs):
    logger.auto_set_dir()
    ds_train, ds_test = get_data(), get_data()
    return TrainConfig(
        model=Model(),
        data=QueueInput(ds_train),
        callbacks=[ModelSaver(), InferenceRunner(ds_test, [ScalarStats("total_costs")])],
        steps_per_epoch=len(ds_train),
        max_epoch=epochs,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--load", help="weights to start from")
    parser.add_argument("--epochs", type=int, default=100)
    args = parser.parse_args()

    config = get_config(args.epochs)
    config.session_init = SmartInit(args.load)
    launch_train_with_config(config, SimpleTrainer())
