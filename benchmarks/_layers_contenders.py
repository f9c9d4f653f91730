"""Contenders of `layers.py`, one to a process.

python _layers_contenders.py PART-CONTENDER [--quick]

`steps`: forward and backward passes of ResNet-20 over one batch, compiled. `build`: a ResNet-50 is
made and traced, again and again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf
from _measure import Gate

PART, CONTENDER = sys.argv[1].split("-")
STEPS = 2 if "--quick" in sys.argv else 5
BATCH = 128
BLOCKS = (3, 4, 6, 3)


def run(epoch: Callable[[], Callable[[], float]], steps: int) -> None:
    """Answer turns of epochs."""
    gate = Gate(steps)
    going = gate.open()
    while going:
        going = gate.epoch_done(epoch())


def steps() -> None:
    """Loss and all gradients; moving averages are updated."""
    rng = np.random.default_rng(0)
    image = tf.constant(rng.integers(0, 256, (BATCH, 32, 32, 3), np.uint8))
    label = tf.constant(rng.integers(0, 10, BATCH))
    if CONTENDER == "keras":
        sys.argv[1:] = ["none-none", ""]
        from _trainers_contenders import resnet20

        net = resnet20()
        weights = net.trainable_variables

        def cost() -> tf.Tensor:
            logits = net(image, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(label, logits)
            return tf.reduce_mean(losses)
    else:
        from _our_resnet import OurResNet20

        from towerpack import TowerFunction

        model = OurResNet20()
        tower = TowerFunction(model.build_graph, model.inputs())
        tower.trace(is_training=True)
        weights = list(tower.store.trainable().values())

        def cost() -> tf.Tensor:
            return tower(image, label, is_training=True).cost

    @tf.function(autograph=False)
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = cost()
        # Summed up, so that none of them is left out.
        sums = [tf.reduce_sum(g) for g in tape.gradient(loss, weights)]
        return tf.stack([loss, tf.add_n(sums)])

    def epoch() -> Callable[[], float]:
        for _ in range(STEPS):
            last = step()
        found = last.numpy()  # waits for it
        return lambda: found[0]

    run(epoch, STEPS)


def resnet50(image: tf.Tensor) -> tf.Tensor:
    """`keras.applications.ResNet50` in our layers: probabilities of 1000 classes."""
    from towerpack.nn import BatchNorm, Conv2D, FullyConnected, GlobalAvgPooling, MaxPooling

    def conv(name: str, x: tf.Tensor, filters: int, size: int, stride: int = 1) -> tf.Tensor:
        x = Conv2D(name, x, filters, size, stride)
        return BatchNorm(f"{name}/bn", x, momentum=0.99, epsilon=1.001e-5)

    x = tf.nn.relu(conv("conv0", image, 64, 7, 2))
    x = MaxPooling("pool0", x, 3, 2, padding="same")
    for group, blocks in enumerate(BLOCKS):
        filters = 64 * 2**group
        for block in range(blocks):
            name = f"group{group}/block{block}"
            stride = 2 if group and not block else 1
            body = tf.nn.relu(conv(f"{name}/conv1", x, filters, 1, stride))
            body = tf.nn.relu(conv(f"{name}/conv2", body, filters, 3))
            body = conv(f"{name}/conv3", body, 4 * filters, 1)
            if not block:
                x = conv(f"{name}/shortcut", x, 4 * filters, 1, stride)
            x = tf.nn.relu(body + x)
    return FullyConnected("logits", GlobalAvgPooling("pool", x), 1000, activation="softmax")


def build() -> None:
    """Variables are made, with their initial values, and the network is traced in training."""
    spec = tf.TensorSpec([None, 224, 224, 3], tf.float32, "image")

    def epoch() -> Callable[[], float]:
        keras.backend.clear_session()
        if CONTENDER == "keras":
            net = keras.applications.ResNet50(weights=None)
            call = tf.function(lambda x: tf.reduce_mean(net(x, training=True)), autograph=False)
            call.get_concrete_function(spec)
            weights = net.variables
        else:
            from towerpack import TowerFunction

            # `tf.function` would trace twice where the first time makes variables.
            tower = TowerFunction(lambda image: tf.reduce_mean(resnet50(image)), [spec])
            tower.trace(is_training=True)
            weights = list(tower.store.named_variables().values())
        count = sum(int(np.prod(weight.shape)) for weight in weights)
        return lambda: count  # the same for both

    run(epoch, 1)


if __name__ == "__main__":
    {"steps": steps, "build": build}[PART]()
