"""Contenders of `training_overhead.py`, one to a process.

python _training_contenders.py CASE CONTENDER [STEPS-IN-AN-EPOCH]
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf
from _measure import Gate
from _training_cases import CLASSES, RATE, Case, arguments

STEPS_PER_CALL = 50


def keras_model(name: str, case: Case) -> keras.Sequential:
    """The layers of a case."""
    layers = keras.layers

    def conv() -> keras.layers.Layer:
        return layers.Conv2D(32, 3, padding="same", activation="relu")

    bodies: dict[str, Callable[[], list[keras.layers.Layer]]] = {
        "lenet": lambda: [
            *[conv(), layers.MaxPooling2D(2), conv(), conv(), layers.MaxPooling2D(2), conv()],
            *[layers.Flatten(), layers.Dense(512, activation="relu"), layers.Dropout(0.5)],
        ],
        "mlp": lambda: [layers.Dense(64, activation="relu")],
    }
    return keras.Sequential([keras.Input(case.shape), *bodies[name](), layers.Dense(CLASSES)])


def update_of(name: str, case: Case) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """One training step, as one writes it by hand."""
    model = keras_model(name, case)
    optimizer = keras.optimizers.Adam(RATE)
    weights = model.trainable_variables
    optimizer.build(weights)

    def update(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, weights)
        optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return loss

    return update


def hand_one(name: str, case: Case, gate: Gate) -> None:
    """One step per call; NumPy batches as arguments."""
    step = tf.function(update_of(name, case))
    batches = case.batches()
    going = gate.open()
    while going:
        for x, y in batches:
            loss = step(x, y)
        going = gate.epoch_done(lambda loss=loss: float(loss))


def hand_many(name: str, case: Case, gate: Gate) -> None:
    """Many steps per call, over data that TensorFlow holds already."""
    update = update_of(name, case)
    columns = zip(*case.batches(), strict=True)
    examples, labels = (tf.constant(np.stack(column)) for column in columns)

    steps_per_call = min(STEPS_PER_CALL, case.steps)

    @tf.function
    def steps(start: tf.Tensor) -> tf.Tensor:
        loss = tf.constant(0.0)
        for i in tf.range(start, start + steps_per_call):
            loss = update(examples[i], labels[i])
        return loss

    going = gate.open()
    while going:
        for start in range(0, case.steps, steps_per_call):
            loss = steps(tf.constant(start))
        going = gate.epoch_done(lambda loss=loss: float(loss))


def keras_fit(name: str, case: Case, gate: Gate) -> None:
    """`fit` on arrays, as it comes, without its progress bar."""

    class Turns(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
            if not gate.epoch_done(lambda: (logs or {})["loss"]):
                self.model.stop_training = True

    model = keras_model(name, case)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(RATE), loss)
    x, y = case.arrays()
    if gate.open():
        model.fit(x, y, batch_size=case.batch, epochs=10**9, verbose=0, callbacks=[Turns()])


def towerpack(
    name: str,
    case: Case,
    gate: Gate,
    *,
    shuffle: bool = False,
    batch: int | None = None,
    line: bool = False,
    defaults: bool = True,
) -> None:
    """A SimpleTrainer with everything that it does unless told otherwise.

    Args:
        name: Of the case.
        case: What to train on.
        gate: Between turns.
        shuffle: Shuffle anew in each epoch.
        batch: What the model's `inputs()` say about the size of a batch.
        line: The learning rate changes after each step.
        defaults: With the default callbacks and monitors.
    """
    from towerpack.callbacks import Callback, ScheduledHyperParamSetter
    from towerpack.dataflow import BatchData, DataFromArrays, ShuffleData
    from towerpack.model import ModelDesc
    from towerpack.nn import Conv2D, FullyConnected, LinearWrap, argscope
    from towerpack.training import SimpleTrainer, TrainConfig

    def lenet(image: tf.Tensor) -> tf.Tensor:
        with argscope(Conv2D, filters=32, kernel_size=3, activation=tf.nn.relu):
            return (
                LinearWrap(image)
                .Conv2D("conv0")
                .MaxPooling("pool0", 2)
                .Conv2D("conv1")
                .Conv2D("conv2")
                .MaxPooling("pool1", 2)
                .Conv2D("conv3")
                .FullyConnected("fc0", 512, activation=tf.nn.relu)
                .Dropout("dropout", 0.5)
                .FullyConnected("fc1", CLASSES)()
            )

    def mlp(x: tf.Tensor) -> tf.Tensor:
        return FullyConnected("fc1", FullyConnected("fc0", x, 64, activation=tf.nn.relu), CLASSES)

    class Model(ModelDesc):
        def inputs(self) -> list[tf.TensorSpec]:
            examples = tf.TensorSpec([batch, *case.shape], tf.float32, "x")
            return [examples, tf.TensorSpec([batch], tf.int64, "y")]

        def build_graph(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
            logits = {"lenet": lenet, "mlp": mlp}[name](x)
            return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))

        def optimizer(self) -> keras.optimizers.Optimizer:
            return keras.optimizers.Adam(RATE)

    class Turns(Callback):
        def before_train(self) -> None:
            gate.open()

        def trigger_epoch(self) -> None:
            if not gate.epoch_done(lambda: self.trainer.monitors.latest("cost")):
                self.trainer.request_stop()

    points = [(0, RATE), (10**8, RATE / 2)]
    schedule = ScheduledHyperParamSetter("learning_rate", points, "linear", step_based=True)
    flow = DataFromArrays(*case.arrays())
    if shuffle:
        flow = ShuffleData(flow)
    with tempfile.TemporaryDirectory() as directory:
        config = TrainConfig(
            model=Model(),
            dataflow=BatchData(flow, case.batch),
            callbacks=[Turns(), schedule] if line else [Turns()],
            **({} if defaults else {"extra_callbacks": [], "monitors": []}),
            max_epoch=10**9,
            seed=0,
            run_dir=directory + "/run",
        )
        SimpleTrainer(config).train()


CONTENDERS = {
    "hand-1": hand_one,
    "hand-50": hand_many,
    "keras-fit": keras_fit,
    "towerpack": towerpack,
    "towerpack-shuffled": lambda *args: towerpack(*args, shuffle=True),
    "towerpack-line": lambda *args: towerpack(*args, line=True),
    "towerpack-without": lambda *args: towerpack(*args, defaults=False),
    "towerpack-fixed": lambda name, case, gate: towerpack(name, case, gate, batch=case.batch),
}


def main() -> None:
    name, contender, case = arguments()
    CONTENDERS[contender](name, case, Gate(case.steps))


if __name__ == "__main__":
    main()
