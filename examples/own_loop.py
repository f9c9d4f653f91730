"""A tower function in a training loop of your own: no trainer, no callbacks.

Layers by name, Keras layers, dropout and optimizers work as they do under a trainer, on one device
or several. `build_step` gives the step; the loop is yours.
"""

import keras
import numpy as np
import tensorflow as tf

from towerpack.nn import Dropout, FullyConnected, expose
from towerpack.training import build_step


def build_graph(point: tf.Tensor, label: tf.Tensor) -> tf.Tensor:
    hidden = FullyConnected("fc0", point, 32, activation=tf.nn.relu)
    hidden = Dropout("dropout", hidden, 0.1)
    logits = keras.layers.Dense(2)(hidden)
    expose("right", tf.cast(tf.argmax(logits, 1) == label, tf.float32))
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(label, logits))


def rings(number: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Points inside (0) and outside (1) of a circle that no line can tell apart."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 2, number)
    radius = rng.uniform(0.0, 0.8, number) + label
    angle = rng.uniform(0, 2 * np.pi, number)
    point = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return point.astype(np.float32), label


def main() -> None:
    specs = [
        tf.TensorSpec([None, 2], tf.float32, "point"),
        tf.TensorSpec([None], tf.int64, "label"),
    ]
    optimizer = keras.optimizers.SGD(0.3)
    # On all GPUs: distribution=Mirrored(tf.distribute.MirroredStrategy()); they share each batch.
    step = build_step((specs, build_graph, optimizer), seed=0)

    points, labels = rings(2000, seed=0)
    for epoch in range(6):
        for start in range(0, 2000, 50):
            outputs = step(points[start : start + 50], labels[start : start + 50])
        right = tf.reduce_mean(outputs["right"])
        print(f"epoch {epoch}: cost {float(outputs['cost']):.3f}, right {float(right):.0%}")

    predict, _ = step.tower.trace(is_training=False).function(["right"])
    held_out = [tf.constant(array) for array in rings(500, seed=1)]
    print(f"right on held-out points: {float(tf.reduce_mean(predict(*held_out)[0])):.1%}")


if __name__ == "__main__":
    main()
