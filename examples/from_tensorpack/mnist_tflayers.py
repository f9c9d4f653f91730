"""Digits by `tf.layers`, which Keras 3 took away and `towerpack.tf1` has.

The idea is that of Tensorpack's examples/basics/mnist-tflayers.py: the same calls in their order.
"""

import argparse

from towerpack import *
from towerpack import tf1 as tf

SIDE = 28


class Model(ModelDesc):
    def inputs(self):
        return [
            tf.TensorSpec((None, SIDE, SIDE), tf.float32, "input"),
            tf.TensorSpec((None,), tf.int32, "label"),
        ]

    def build_graph(self, image, label):
        x = tf.expand_dims(image, 3) * 2 - 1

        with argscope([tf.layers.conv2d], padding="same", activation=tf.nn.relu):
            x = tf.layers.conv2d(x, 32, 3, name="conv0")
            x = tf.layers.max_pooling2d(x, 2, 2, padding="valid")
            x = tf.layers.conv2d(x, 32, 3, name="conv1")
            x = tf.layers.conv2d(x, 32, 3, name="conv2")
            x = tf.layers.max_pooling2d(x, 2, 2, padding="valid")
            x = tf.layers.conv2d(x, 32, 3, name="conv3")
            x = tf.layers.flatten(x)
            x = tf.layers.dense(x, 512, activation=tf.nn.relu, name="fc0")
            x = tf.layers.dropout(x, rate=0.5, training=self.training)
        logits = tf.layers.dense(x, 10, activation=tf.identity, name="fc1")

        cost = tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits, labels=label)
        cost = tf.reduce_mean(cost, name="cross_entropy_loss")
        correct = tf.cast(tf.nn.in_top_k(logits, label, 1), tf.float32, name="correct")
        accuracy = tf.reduce_mean(correct, name="accuracy")
        summary.add_moving_summary(tf.reduce_mean(1 - correct, name="train_error"), accuracy)

        wd_cost = tf.multiply(
            1e-5, regularize_cost("fc.*/kernel", tf.nn.l2_loss), name="regularize_loss"
        )
        total_cost = tf.add_n([wd_cost, cost], name="total_cost")
        summary.add_moving_summary(cost, wd_cost, total_cost)
        summary.add_param_summary((".*/kernel", ["histogram", "rms"]))
        return total_cost

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
        data=FeedInput(dataset_train),
        callbacks=[
            ModelSaver(),
            InferenceRunner(dataset_test, ScalarStats(["cross_entropy_loss", "accuracy"])),
            MaxSaver("val/accuracy"),
        ],
        steps_per_epoch=len(dataset_train),
        max_epoch=args.epochs,
    )
    launch_train_with_config(config, SimpleTrainer())
