"""CIFAR-10 or CIFAR-100 by a small convolutional network, at a learning rate that follows accuracy.

The idea is that of Tensorpack's examples/basics/cifar-convnet.py.
"""

import argparse
import os

import tensorflow.compat.v1 as tf

from towerpack import *


class Model(ModelDesc):
    def __init__(self, num_classes):
        super().__init__()
        self.num_classes = num_classes

    def inputs(self):
        return [
            tf.TensorSpec((None, 30, 30, 3), tf.float32, "input"),
            tf.TensorSpec((None,), tf.int32, "label"),
        ]

    def build_graph(self, image, label):
        drop_rate = tf.constant(0.5 if self.training else 0.0)
        if self.training:
            tf.summary.image("train_image", image, 10)
        data_format = "channels_first" if get_num_gpu() else "channels_last"
        if get_num_gpu():
            image = tf.transpose(image, [0, 3, 1, 2])

        image = image / 4.0
        with (
            argscope(Conv2D, activation=BNReLU, use_bias=False, kernel_size=3),
            argscope([Conv2D, MaxPooling, BatchNorm], data_format=data_format),
        ):
            logits = (
                LinearWrap(image)
                .Conv2D("conv1.1", filters=64)
                .Conv2D("conv1.2", filters=64)
                .MaxPooling("pool1", 3, stride=2, padding="SAME")
                .Conv2D("conv2.1", filters=128)
                .Conv2D("conv2.2", filters=128)
                .MaxPooling("pool2", 3, stride=2, padding="SAME")
                .Conv2D("conv3.1", filters=128, padding="VALID")
                .Conv2D("conv3.2", filters=128, padding="VALID")
                .FullyConnected("fc0", 1024 + 512, activation=tf.nn.relu)
                .Dropout(rate=drop_rate)
                .FullyConnected("fc1", 512, activation=tf.nn.relu)
                .FullyConnected("linear", out_dim=self.num_classes)()
            )

        cost = tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits, labels=label)
        cost = tf.reduce_mean(cost, name="cross_entropy_loss")
        correct = tf.cast(tf.nn.in_top_k(logits, label, 1), tf.float32, name="correct")
        add_moving_summary(tf.reduce_mean(correct, name="accuracy"))

        wd_cost = regularize_cost("fc.*/kernel", l2_regularizer(4e-4), name="regularize_loss")
        add_moving_summary(cost, wd_cost)
        add_param_summary((".*/kernel", ["histogram"]))
        return tf.add_n([cost, wd_cost], name="cost")

    def optimizer(self):
        lr = tf.get_variable("learning_rate", initializer=1e-2, trainable=False)
        return tf.train.AdamOptimizer(lr, epsilon=1e-3)


def get_data(part, num_classes):
    is_train = part == "train"
    ds = dataset.Cifar10(part) if num_classes == 10 else dataset.Cifar100(part)
    if is_train:
        augmentors = [
            imgaug.RandomCrop((30, 30)),
            imgaug.Flip(horiz=True),
            imgaug.Brightness(63),
            imgaug.Contrast((0.2, 1.8)),
            imgaug.MeanVarianceNormalize(all_channel=True),
        ]
    else:
        augmentors = [
            imgaug.CenterCrop((30, 30)),
            imgaug.MeanVarianceNormalize(all_channel=True),
        ]
    ds = AugmentImageComponent(ds, augmentors)
    ds = BatchData(ds, 128, remainder=not is_train)
    return MultiProcessRunnerZMQ(ds, 2) if is_train else ds


def lower(lr):
    if lr < 3e-5:
        raise StopTraining
    return lr * 0.31


def get_config(num_classes, epochs):
    return TrainConfig(
        model=Model(num_classes),
        data=QueueInput(get_data("train", num_classes)),
        callbacks=[
            ModelSaver(),
            InferenceRunner(get_data("test", num_classes), ScalarStats(["accuracy", "cost"])),
            StatMonitorParamSetter(
                "learning_rate", "val/accuracy", lower, threshold=0.001, last_k=10, reverse=True
            ),
        ],
        max_epoch=epochs,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--load", help="weights to start from")
    parser.add_argument("--classnum", help="10 or 100", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=150)
    args = parser.parse_args()

    with tf.Graph().as_default():
        logger.set_logger_dir(os.path.join("runs", f"cifar{args.classnum}"))
        config = get_config(args.classnum, args.epochs)
        if args.load:
            config.session_init = SmartInit(args.load)

        num_gpu = get_num_gpu()
        trainer = SimpleTrainer() if num_gpu <= 1 else SyncMultiGPUTrainerParameterServer(num_gpu)
        launch_train_with_config(config, trainer)
