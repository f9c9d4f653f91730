"""Contenders of `trainers.py` that use TensorFlow, one to a process.

python _trainers_contenders.py PART-CONTENDER DIRECTORY [--quick]
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

IMPORTED = time.time()

from _measure import Gate  # noqa: E402 - what follows counts as start
from _trainers_images import BATCH, CROP, SIDE, WORKERS, load, number, photos  # noqa: E402
from _training_cases import CASES, CLASSES, RATE  # noqa: E402
from _training_contenders import keras_model  # noqa: E402

_, NAME, DIRECTORY, *OPTIONS = sys.argv
PART, _, CONTENDER = NAME.partition("-")
STEPS = 10 if OPTIONS else 50
LENET = replace(CASES["lenet"], batch=64, steps=2 * STEPS)  # for two replicas


class Follower:
    """The gate of a process that only does what another one does."""

    def open(self) -> bool:
        return True

    def epoch_done(self, loss: Callable[[], float]) -> bool:
        return True


def by_us(
    trainer: Callable[..., Any], model: Any, gate: Any, callbacks: Any = (), **data: Any
) -> None:
    """Train a compiled Keras model, or one of ours, with all that a trainer does by default."""
    from towerpack.callbacks import Callback
    from towerpack.training import KerasModel, TrainConfig

    class Turns(Callback):
        def before_train(self) -> None:
            gate.open()

        def trigger_epoch(self) -> None:
            if not gate.epoch_done(lambda: self.trainer.monitors.latest("cost")):
                self.trainer.request_stop()

    config = TrainConfig(
        model=KerasModel(model) if isinstance(model, keras.Model) else model,
        callbacks=[Turns(), *callbacks],
        max_epoch=10**9,
        seed=0,
        run_dir=f"{DIRECTORY}/{NAME}",
        **data,
    )
    trainer(config).train()


def by_fit(model: keras.Model, gate: Any, *data: Any, **how: Any) -> None:
    """Train by Keras, without its progress bar."""

    class Turns(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
            if not gate.epoch_done(lambda: (logs or {})["loss"]):
                self.model.stop_training = True

    if gate.open():
        model.fit(*data, epochs=10**9, verbose=0, callbacks=[Turns()], **how)


def compiled(net: keras.Model, optimizer: keras.optimizers.Optimizer) -> keras.Model:
    net.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return net


# ---------------------------------------------------------------------------- replicas, workers


def replicas() -> None:
    """On two logical CPU devices."""
    from towerpack.training import SyncMultiGPUTrainer

    gate = Gate(STEPS)
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    devices = ["CPU:0", "CPU:1"]
    if CONTENDER == "hand":
        by_hand(tf.distribute.MirroredStrategy(devices, tf.distribute.ReductionToOneDevice()), gate)
    else:
        lenet_by_us(lambda config: SyncMultiGPUTrainer(config, devices=devices), gate)


def workers() -> None:
    """In two processes, of which the first starts the second."""
    from towerpack.training import MultiWorkerTrainer, join_cluster

    gate = Follower() if "TF_CONFIG" in os.environ else Gate(STEPS)
    if isinstance(gate, Gate):
        sockets = [socket.create_server(("localhost", 0)) for _ in range(2)]
        addresses = [f"localhost:{each.getsockname()[1]}" for each in sockets]
        for index, each in reversed(list(enumerate(sockets))):
            each.close()
            task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
            os.environ["TF_CONFIG"] = json.dumps(task)
            if index:
                nothing = subprocess.DEVNULL
                subprocess.Popen([sys.executable, *sys.argv], stdin=nothing, stdout=nothing)
    if CONTENDER == "hand":
        by_hand(tf.distribute.MultiWorkerMirroredStrategy(), gate)
    else:
        join_cluster()
        lenet_by_us(MultiWorkerTrainer, gate)


def lenet_by_us(trainer: Callable[..., Any], gate: Any) -> None:
    from towerpack.dataflow import BatchData, DataFromArrays

    model = compiled(keras_model("lenet", LENET), keras.optimizers.Adam(RATE))
    flow = BatchData(DataFromArrays(*LENET.arrays()), LENET.batch)
    by_us(trainer, model, gate, dataflow=flow)


def by_hand(strategy: tf.distribute.Strategy, gate: Any) -> None:
    """All steps of an epoch in one call, over data that TensorFlow holds already."""
    total = strategy.num_replicas_in_sync
    with strategy.scope():
        model = keras_model("lenet", LENET)
        optimizer = keras.optimizers.Adam(RATE)
        weights = model.trainable_variables
        optimizer.build(weights)
        own = tf.VariableSynchronization.ON_READ
        last = tf.Variable(0.0, trainable=False, synchronization=own)

    def update(x: tf.Tensor, y: tf.Tensor, i: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            logits = model(x[i], training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y[i], logits)
            loss = tf.reduce_mean(losses)
            share = loss / total  # the optimizer sums over replicas
        optimizer.apply(tape.gradient(share, weights), weights)
        last.assign(loss)

    @tf.function
    def steps(x: Any, y: Any) -> None:
        for i in tf.range(STEPS):
            strategy.run(update, args=(x, y, i))

    def of_replica(context: Any) -> list[tf.Tensor]:
        own = LENET.batches()[context.replica_id_in_sync_group :: total]
        return [tf.constant(np.stack(column)) for column in zip(*own, strict=True)]

    x, y = strategy.experimental_distribute_values_from_function(of_replica)
    going = gate.open()
    while going:
        steps(x, y)
        going = gate.epoch_done(lambda: float(strategy.experimental_local_results(last)[0]))


# ---------------------------------------------------------------------------- images


def resnet20() -> keras.Model:
    """He et al. (2015) for CIFAR-10, with a convolution as shortcut where the shape changes."""
    layers = keras.layers

    def conv(x: Any, filters: int, stride: int = 1) -> Any:
        x = layers.Conv2D(filters, 3, stride, "same", use_bias=False)(x)
        return layers.BatchNormalization()(x)

    image = keras.Input([SIDE, SIDE, 3], dtype="uint8")
    x = layers.ReLU()(conv(layers.Rescaling(1 / 127.5, -1)(image), 16))
    for filters in (16, 32, 64):
        for _ in range(3):
            stride = filters // x.shape[-1]
            body = conv(layers.ReLU()(conv(x, filters, stride)), filters)
            shortcut = x if stride == 1 else layers.Conv2D(filters, 1, stride)(x)
            x = layers.ReLU()(body + shortcut)
    logits = layers.Dense(CLASSES)(layers.GlobalAveragePooling2D()(x))
    return compiled(keras.Model(image, logits), keras.optimizers.SGD(0.05, momentum=0.9))


def images() -> None:
    """ResNet-20 on JPEG files."""
    gate = Gate(number(OPTIONS))
    files, labels = photos(number(OPTIONS))
    if CONTENDER == "keras":
        by_fit(resnet20(), gate, tf_data(files, labels))
        return
    from _our_resnet import OurResNet20

    from towerpack.dataflow import BatchData, DataFromList, MapData, PrefetchData, ShuffleData
    from towerpack.training import SimpleTrainer

    def loaded(dp: Any, rng: np.random.Generator) -> tuple[np.ndarray, int]:
        return load(dp[0], rng), dp[1]

    flow = ShuffleData(DataFromList(list(zip(files, labels.tolist(), strict=True))))
    flow = PrefetchData(BatchData(MapData(flow, loaded, rng=True), BATCH), WORKERS)
    by_us(SimpleTrainer, OurResNet20(), gate, dataflow=flow)


def tf_data(files: list[bytes], labels: np.ndarray) -> tf.data.Dataset:
    """What `load` does, by TensorFlow's operations."""

    def loaded(file: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        image = tf.image.random_crop(tf.io.decode_jpeg(file, channels=3), [CROP, CROP, 3])
        image = tf.cast(tf.image.resize(image, [SIDE, SIDE]), tf.uint8)
        return tf.image.random_flip_left_right(image), label

    data = tf.data.Dataset.from_tensor_slices((files, labels)).shuffle(len(files))
    data = data.map(loaded, tf.data.AUTOTUNE).batch(BATCH, drop_remainder=True)
    return data.prefetch(tf.data.AUTOTUNE)


# ---------------------------------------------------------------------------- saving, start, GPUs


def saving() -> None:
    """A model of 100 MB, with a checkpoint after each epoch or without."""
    from towerpack.callbacks import ModelSaver
    from towerpack.inputs import DummyConstantInput
    from towerpack.training import SimpleTrainer

    layers = [keras.layers.Dense(2048, activation="relu") for _ in range(6)]
    net = compiled(keras.Sequential([keras.Input([2048]), *layers]), keras.optimizers.SGD(1e-3))
    callbacks = [] if CONTENDER == "none" else [ModelSaver(keep=1)]
    data = DummyConstantInput([[64, 2048], [64]])
    by_us(SimpleTrainer, net, Gate(STEPS), callbacks, data=data, steps_per_epoch=STEPS)


class Stamp(Follower):
    """A gate that prints when TensorFlow was imported and when the first step was done."""

    def epoch_done(self, loss: Callable[[], float]) -> bool:
        loss()
        print(json.dumps([IMPORTED, time.time()]), flush=True)
        return False


def start() -> None:
    """30 layers, one step."""
    x, y = np.zeros([32, SIDE, SIDE, 3], np.float32), np.zeros([32], np.int64)

    def by_keras() -> keras.Model:
        layers = [keras.Input(x.shape[1:])]
        for _ in range(29):
            layers.append(keras.layers.Conv2D(16, 3, padding="same", use_bias=False))
            layers += [keras.layers.BatchNormalization(), keras.layers.ReLU()]
        layers += [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(CLASSES)]
        return compiled(keras.Sequential(layers), keras.optimizers.Adam(RATE))

    if CONTENDER == "keras":
        by_fit(by_keras(), Stamp(), x, y, batch_size=len(x))
        return
    from towerpack.dataflow import BatchData, DataFromArrays
    from towerpack.nn import BatchNorm, Conv2D, FullyConnected, GlobalAvgPooling
    from towerpack.training import SimpleTrainer

    def build_graph(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        for i in range(29):
            x = Conv2D(f"conv{i}", x, 16, 3, use_bias=False)
            x = tf.nn.relu(BatchNorm(f"bn{i}", x))
        logits = FullyConnected("fc", GlobalAvgPooling("pool", x), CLASSES)
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))

    specs = [tf.TensorSpec([None, *a.shape[1:]], a.dtype, n) for n, a in (("x", x), ("y", y))]
    model = specs, build_graph, lambda: keras.optimizers.Adam(RATE)
    by_us(SimpleTrainer, model, Stamp(), dataflow=BatchData(DataFromArrays(x, y), len(x)))


def gpu() -> None:
    """The same batch again and again, on all GPUs."""
    from towerpack.inputs import DummyConstantInput
    from towerpack.training import SyncMultiGPUTrainer

    if CONTENDER == "resnet20":
        net, batch, side = resnet20(), 512, SIDE
    else:
        net = keras.applications.ResNet50(weights=None, classifier_activation=None)
        net, batch, side = compiled(net, keras.optimizers.SGD(0.05, momentum=0.9)), 64, 224
    total = STEPS * batch * max(1, len(tf.config.list_physical_devices("GPU")))
    data = DummyConstantInput([[batch, side, side, 3], [batch]])
    by_us(SyncMultiGPUTrainer, net, Gate(total), data=data, steps_per_epoch=STEPS)


if __name__ == "__main__":
    {part.__name__: part for part in (replicas, workers, images, saving, start, gpu)}[PART]()
