"""House numbers by a very small network, trained on two parts of SVHN that are mixed.

The idea is that of Tensorpack's examples/basics/svhn-digit-convnet.py.
"""

import argparse

import tensorflow.compat.v1 as tf

from towerpack import *


class Model(ModelDesc):
    def inputs(self):
        return [
            tf.TensorSpec([None, 40, 40, 3], tf.float32, "input"),
            tf.TensorSpec([None], tf.int32, "label"),
        ]

    def build_graph(self, image, label):
        image = image / 128.0 - 1

        with argscope(Conv2D, activation=BNReLU, use_bias=False):
            logits = (
                LinearWrap(image)
                .Conv2D("conv1", 24, 5, padding="VALID")
                .MaxPooling("pool1", 2, padding="SAME")
                .Conv2D("conv2", 32, 3, padding="VALID")
                .Conv2D("conv3", 32, 3, padding="VALID")
                .MaxPooling("pool2", 2, padding="SAME")
                .Conv2D("conv4", 64, 3, padding="VALID")
                .Dropout("drop", rate=0.5)
                .FullyConnected(
                    "fc0",
                    512,
                    bias_initializer=tf.constant_initializer(0.1),
                    activation=tf.nn.relu,
                )
                .FullyConnected("linear", units=10)()
            )
        tf.nn.softmax(logits, name="output")

        correct = tf.cast(tf.nn.in_top_k(logits, label, 1), tf.float32)
        add_moving_summary(tf.reduce_mean(correct, name="accuracy"))
        cost = tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits, labels=label)
        cost = tf.reduce_mean(cost, name="cross_entropy_loss")

        wd_cost = regularize_cost("fc.*/kernel", l2_regularizer(1e-5))
        add_moving_summary(cost, wd_cost)
        add_param_summary((".*/kernel", ["histogram", "rms"]))
        return tf.add_n([cost, wd_cost], name="cost")

    def optimizer(self):
        lr = tf.train.exponential_decay(
            learning_rate=1e-3,
            global_step=get_global_step_var(),
            decay_steps=4721 * 60,
            decay_rate=0.2,
            staircase=True,
            name="learning_rate",
        )
        return tf.train.AdamOptimizer(lr)


def get_data():
    train = RandomMixData([dataset.SVHNDigit("train"), dataset.SVHNDigit("extra")])
    augmentors = [
        imgaug.Resize((40, 40)),
        imgaug.Brightness(30),
        imgaug.Contrast((0.5, 1.5)),
    ]
    train = BatchData(AugmentImageComponent(train, augmentors), 128)
    train = MultiProcessRunner(train, 5, 2)

    test = dataset.SVHNDigit("test", shuffle=False)
    test = AugmentImageComponent(test, [imgaug.Resize((40, 40))])
    return train, BatchData(test, 128, remainder=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--load", help="weights to start from")
    parser.add_argument("--epochs", type=int, default=70)
    args = parser.parse_args()

    logger.auto_set_dir()
    data_train, data_test = get_data()
    config = TrainConfig(
        model=Model(),
        data=QueueInput(data_train),
        callbacks=[ModelSaver(), InferenceRunner(data_test, ScalarStats(["cost", "accuracy"]))],
        max_epoch=args.epochs,
        session_init=SmartInit(args.load),
    )
    launch_train_with_config(config, SimpleTrainer())
