"""CIFAR-10 by a residual network of 6n+2 layers (He et al. 2016), on any number of GPUs.

The idea is that of Tensorpack's examples/ResNet/cifar10-resnet.py; images stay channels-last, so
that it runs on CPUs too.
"""

import argparse

import tensorflow.compat.v1 as tf

from towerpack import *


class Model(ModelDesc):
    def __init__(self, n):
        super().__init__()
        self.n = n

    def inputs(self):
        return [
            tf.TensorSpec([None, 32, 32, 3], tf.float32, "input"),
            tf.TensorSpec([None], tf.int32, "label"),
        ]

    def build_graph(self, image, label):
        def residual(name, x, widen=False, first=False):
            channels = x.get_shape().as_list()[3]
            with tf.variable_scope(name):
                y = x if first else BNReLU(x)
                out = channels * 2 if widen else channels
                y = Conv2D("conv1", y, out, strides=2 if widen else 1, activation=BNReLU)
                y = Conv2D("conv2", y, out)
                if widen:
                    x = AvgPooling("pool", x, 2)
                    x = tf.pad(x, [[0, 0], [0, 0], [0, 0], [channels // 2, channels // 2]])
                return x + y

        initializer = tf.variance_scaling_initializer(scale=2.0, mode="fan_out")
        with argscope(Conv2D, use_bias=False, kernel_size=3, kernel_initializer=initializer):
            x = Conv2D("conv0", image / 128.0, 16, activation=BNReLU)
            for group in (1, 2, 3):
                for k in range(self.n):
                    x = residual(
                        f"res{group}.{k}",
                        x,
                        widen=group > 1 and k == 0,
                        first=group == 1 and k == 0,
                    )
            x = BNReLU("bnlast", x)
            x = GlobalAvgPooling("gap", x)
        logits = FullyConnected("linear", x, 10)
        tf.nn.softmax(logits, name="output")

        cost = tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits, labels=label)
        cost = tf.reduce_mean(cost, name="cross_entropy_loss")
        wrong = tf.logical_not(tf.nn.in_top_k(logits, label, 1))
        wrong = tf.cast(wrong, tf.float32, name="wrong_vector")
        add_moving_summary(tf.reduce_mean(wrong, name="train_error"))

        decay = tf.train.exponential_decay(0.0002, get_global_step_var(), 480000, 0.2, True)
        wd_cost = tf.multiply(decay, regularize_cost(".*/kernel", tf.nn.l2_loss), name="wd_cost")
        add_moving_summary(cost, wd_cost)
        add_param_summary((".*/kernel", ["histogram"]))
        return tf.add_n([cost, wd_cost], name="cost")

    def optimizer(self):
        lr = tf.get_variable("learning_rate", initializer=0.01, trainable=False)
        return tf.train.MomentumOptimizer(lr, 0.9)


def get_data(part):
    is_train = part == "train"
    ds = dataset.Cifar10(part)
    mean = ds.get_per_pixel_mean(("train",))
    augmentors = [imgaug.MapImage(lambda x: x - mean)]
    if is_train:
        augmentors = [
            imgaug.CenterPaste((40, 40)),
            imgaug.RandomCrop((32, 32)),
            imgaug.Flip(horiz=True),
            *augmentors,
        ]
    ds = AugmentImageComponent(ds, augmentors)
    ds = BatchData(ds, 128, remainder=not is_train)
    return MultiProcessRunner(ds, 3, 2) if is_train else ds


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("-n", "--num-units", help="units in each stage", type=int, default=18)
    parser.add_argument("--load", help="weights to start from")
    parser.add_argument("--epochs", type=int, default=400)
    args = parser.parse_args()

    logger.auto_set_dir()
    config = TrainConfig(
        model=Model(n=args.num_units),
        dataflow=get_data("train"),
        callbacks=[
            ModelSaver(),
            InferenceRunner(
                get_data("test"), [ScalarStats("cost"), ClassificationError("wrong_vector")]
            ),
            ScheduledHyperParamSetter(
                "learning_rate", [(1, 0.1), (82, 0.01), (123, 0.001), (300, 0.0002)]
            ),
        ],
        max_epoch=args.epochs,
        session_init=SmartInit(args.load),
    )
    num_gpu = max(get_num_gpu(), 1)
    launch_train_with_config(config, SyncMultiGPUTrainerParameterServer(num_gpu))
