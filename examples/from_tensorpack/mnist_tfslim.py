"""Digits by TF-slim: its layers, its arg_scope, its regularizers, its names of weights.

The idea is that of Tensorpack's examples/basics/mnist-tfslim.py: the same calls in their order.
"""

import argparse

import tensorflow.compat.v1 as tf
import tf_slim as slim

from towerpack import *

SIDE = 28


class Model(ModelDesc):
    def inputs(self):
        return [
            tf.TensorSpec((None, SIDE, SIDE), tf.float32, "input"),
            tf.TensorSpec((None,), tf.int32, "label"),
        ]

    def build_graph(self, image, label):
        x = tf.expand_dims(image, 3) * 2 - 1

        with slim.arg_scope(
            [slim.layers.fully_connected], weights_regularizer=slim.l2_regularizer(1e-5)
        ):
            x = slim.layers.conv2d(x, 32, [3, 3], scope="conv0")
            x = slim.layers.max_pool2d(x, [2, 2], scope="pool0")
            x = slim.layers.conv2d(x, 32, [3, 3], padding="SAME", scope="conv1")
            x = slim.layers.conv2d(x, 32, [3, 3], scope="conv2")
            x = slim.layers.max_pool2d(x, [2, 2], scope="pool1")
            x = slim.layers.conv2d(x, 32, [3, 3], scope="conv3")
            x = slim.layers.flatten(x, scope="flatten")
            x = slim.layers.fully_connected(x, 512, scope="fc0")
            x = slim.layers.dropout(x, is_training=self.training)
            logits = slim.layers.fully_connected(x, 10, activation_fn=None, scope="fc1")

        cost = tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits, labels=label)
        cost = tf.reduce_mean(cost, name="cross_entropy_loss")
        correct = tf.cast(tf.nn.in_top_k(logits, label, 1), tf.float32)
        accuracy = tf.reduce_mean(correct, name="accuracy")
        summary.add_moving_summary(accuracy, cost)
        summary.add_param_summary((".*/weights", ["histogram", "rms"]))
        return cost + regularize_cost_from_collection()

    def optimizer(self):
        lr = tf.train.exponential_decay(
            learning_rate=1e-3,
            global_step=get_global_step_var(),
            decay_steps=468 * 10,
            decay_rate=0.3,
            staircase=True,
            name="learning_rate",
        )
        return tf.train.AdamOptimizer(lr)


def get_data():
    train = BatchData(dataset.Mnist("train"), 128)
    test = BatchData(dataset.Mnist("test"), 256, remainder=True)
    return train, test


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()

    logger.auto_set_dir()
    dataset_train, dataset_test = get_data()
    config = TrainConfig(
        model=Model(),
        dataflow=dataset_train,
        callbacks=[
            ModelSaver(),
            InferenceRunner(dataset_test, ScalarStats(["cross_entropy_loss", "accuracy"])),
        ],
        max_epoch=args.epochs,
    )
    launch_train_with_config(config, SimpleTrainer())
