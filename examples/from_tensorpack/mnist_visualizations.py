"""Digits again, with pictures of the convolutions' weights and of what they give.

The idea is that of Tensorpack's examples/basics/mnist-visualizations.py. The pictures are in the
run's events, for TensorBoard.
"""

import argparse
import math

import tensorflow.compat.v1 as tf

from towerpack import *

SIDE = 28


def show_weights(filters, name):
    """One picture: output channels from top to bottom, input channels from left to right."""
    with tf.name_scope("weights_" + name):
        columns = tf.unstack(tf.transpose(filters, (2, 3, 0, 1)))  # of each input channel
        rows = [tf.concat(tf.unstack(column), 0) for column in columns]
        picture = tf.concat(rows, 1)[None, :, :, None]
    tf.summary.image("weights_" + name, picture)


def show_activations(activation, name):
    """One picture for each input: its channels in a square."""
    with tf.name_scope("activations_" + name):
        channels = tf.unstack(activation, axis=3)
        side = math.isqrt(len(channels))
        rows = [tf.concat(channels[i * side : (i + 1) * side], 2) for i in range(side)]
        picture = tf.concat(rows, 1)
    tf.summary.image("activations_" + name, picture[..., None])


class Model(ModelDesc):
    def inputs(self):
        return [
            tf.TensorSpec((None, SIDE, SIDE), tf.float32, "input"),
            tf.TensorSpec((None,), tf.int32, "label"),
        ]

    def build_graph(self, image, label):
        image = tf.expand_dims(image * 2 - 1, 3)

        with argscope(Conv2D, kernel_shape=3, nl=tf.nn.relu, out_channel=32):
            c0 = Conv2D("conv0", image)
            p0 = MaxPooling("pool0", c0, 2)
            c1 = Conv2D("conv1", p0)
            c2 = Conv2D("conv2", c1)
            p1 = MaxPooling("pool1", c2, 2)
            c3 = Conv2D("conv3", p1)
            fc0 = FullyConnected("fc0", c3, 512, nl=tf.nn.relu)
            fc0 = Dropout("dropout", fc0, 0.5)
            logits = FullyConnected("fc1", fc0, out_dim=10, nl=tf.identity)

        with tf.name_scope("visualizations"):
            for name, output in [("conv0", c0), ("conv1", c1), ("conv2", c2), ("conv3", c3)]:
                show_weights(output.variables.kernel, name)
                show_activations(output, name)
            tf.summary.image("input", (image + 1.0) * 128.0, 3)

        cost = tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits, labels=label)
        cost = tf.reduce_mean(cost, name="cross_entropy_loss")
        tf.reduce_mean(tf.cast(tf.nn.in_top_k(logits, label, 1), tf.float32), name="accuracy")

        wd_cost = tf.multiply(
            1e-5, regularize_cost("fc.*/kernel", tf.nn.l2_loss), name="regularize_loss"
        )
        return tf.add_n([wd_cost, cost], name="total_cost")

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
        steps_per_epoch=len(dataset_train),
        max_epoch=args.epochs,
    )
    launch_train_with_config(config, SimpleTrainer())
