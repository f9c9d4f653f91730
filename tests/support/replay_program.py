"""A training that records the inputs of its steps; started, and killed, by `test_replay.py`.

python replay_program.py CASE DIRECTORY [WORKERS]
"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import Any

import cv2
import keras
import numpy as np
import tensorflow as tf

from towerpack.apps import Runner, find_recipe
from towerpack.callbacks import Callback, ModelSaver, PeriodicTrigger
from towerpack.dataflow import (
    AugmentImageComponent,
    BatchByLength,
    BatchData,
    DataFlow,
    DataFromArrays,
    DataFromList,
    FilterData,
    ImageFolder,
    LocallyShuffleData,
    MapData,
    MixData,
    PrefetchData,
    ShuffleData,
)
from towerpack.dataflow.images import Brightness, Flip, RandomCrop
from towerpack.inputs import SplitInput
from towerpack.nn import expose
from towerpack.training import (
    AccumulateGradients,
    MultiWorkerTrainer,
    SimpleTrainer,
    SyncMultiGPUTrainer,
    TrainConfig,
)

RNG = np.random.default_rng(3)
IDS = np.arange(203)
NOISE = RNG.normal(size=(203, 3)).astype(np.float32)
LENGTHS = RNG.integers(1, 40, 203)
TEXTS = [[np.arange(n) + i] for i, n in enumerate(LENGTHS)]


def noisy(row: Any, rng: np.random.Generator) -> Any:
    return row[0], row[1] + rng.normal(size=3).astype(np.float32)


def table(shift: int = 0) -> DataFlow:
    return DataFromArrays(IDS + shift, NOISE)


def photographs(directory: Path) -> DataFlow:
    for i in range(60):
        file = directory / "photographs" / f"class{i % 3}" / f"{i:03}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            cv2.imwrite(str(file), np.random.default_rng(i).integers(0, 256, (24, 24, 3)))
    ds = ImageFolder(directory / "photographs", shuffle=True)
    ds = AugmentImageComponent(ds, [RandomCrop(16), Flip(horiz=True), Brightness(20)])
    return BatchData(ds, 8)


def flow_of(case: str, directory: Path, workers: int) -> Any:
    """Return the data of a case."""
    if case == "photographs":
        return PrefetchData(photographs(directory), workers)
    if case == "mixture":
        mixed = MixData([ShuffleData(table()), ShuffleData(table(1000))], [3, 1], stop="repeat")
        return PrefetchData(BatchData(MapData(mixed, noisy, rng=True), 8), workers)
    if case == "filter":
        ds = FilterData(ShuffleData(table()), lambda row: row[0] % 3 > 0)
        return PrefetchData(BatchData(MapData(ds, noisy, rng=True), 8), workers)
    if case == "buckets":
        return BatchByLength(DataFromList(TEXTS), 8, [10, 20], lengths=LENGTHS, shuffle=True)
    if case == "texts":
        return BatchData(LocallyShuffleData(DataFromList(TEXTS), 50), 8, pad=-1)
    if case in ("split", "workers_split"):
        return SplitInput(BatchData(ShuffleData(table()), 8))
    return BatchData(MapData(ShuffleData(table()), noisy, rng=True), 4)


class Record(Callback):
    """Write the inputs of each step to a file."""

    chief_only = False

    def __init__(self, names: list[str], directory: Path) -> None:
        self.names, self.directory, self.worker = names, directory, os.environ.get("WORKER", "0")
        self._fetches = tuple(f"in_{name}" for name in names)
        directory.mkdir(exist_ok=True)

    def after_step(self, outputs: Any) -> None:
        arrays = {name: outputs[f"in_{name}"] for name in self.names}
        np.savez(self.directory / f"{self.trainer.global_step}-{self.worker}.npz", **arrays)


def specs_of(case: str) -> list[tf.TensorSpec]:
    if case == "photographs":
        return [
            tf.TensorSpec([None, 16, 16, 3], tf.float32, "image"),
            tf.TensorSpec([None], tf.int32, "label"),
        ]
    if case in ("buckets", "texts"):
        return [tf.TensorSpec([None, None], tf.int32, "tokens")]
    return [tf.TensorSpec([None], tf.int32, "id"), tf.TensorSpec([None, 3], tf.float32, "x")]


def cost(*inputs: tf.Tensor) -> tf.Tensor:
    weight = tf.compat.v1.get_variable("w", [])
    return tf.square(weight - tf.reduce_mean(tf.cast(inputs[-1], tf.float32)) / 100)


def config_of(case: str, directory: Path, workers: int = 2) -> TrainConfig:
    specs = specs_of(case)
    names = [spec.name for spec in specs]

    def build(*inputs: tf.Tensor) -> tf.Tensor:
        for name, tensor in zip(names, inputs, strict=True):
            expose(f"in_{name}", tf.identity(tensor))
        return cost(*inputs)

    optimizer: Any = keras.optimizers.SGD(0.01)
    data = flow_of(case, directory, workers)
    return TrainConfig(
        **({"dataflow": data} if isinstance(data, DataFlow) else {"data": data}),
        model=(specs, build, lambda: optimizer),
        optimizer=AccumulateGradients(optimizer, 3) if case == "replicas" else optimizer,
        callbacks=[
            PeriodicTrigger(ModelSaver(max_to_keep=50), every_k_steps=17),
            Record(names, directory / "record"),
        ],
        monitors=[],
        extra_callbacks=[],
        steps_per_epoch=40,
        max_epoch=3,
        seed=5,
        run_dir=directory / "run",
    )


def train_digits(directory: Path, workers: int) -> None:
    recipe = find_recipe(
        "digits",
        [f"data.workers={workers}", "train.epochs=2"],
    )
    record = Record(["image", "label"], directory / "record")
    saver = PeriodicTrigger(ModelSaver(max_to_keep=50), every_k_steps=15)
    runner = Runner.from_recipe(recipe, directory / "run", [record, saver])
    build = runner.modeler.build_graph

    def exposing(image: tf.Tensor, label: tf.Tensor) -> tf.Tensor:
        expose("in_image", tf.identity(image))
        expose("in_label", tf.identity(label))
        return build(image, label)

    runner.modeler.build_graph = exposing
    runner.train()


def main(case: str, directory: Path, workers: int) -> None:
    directory.mkdir(exist_ok=True)
    if case == "digits":
        train_digits(directory, workers)
        return
    trainer: Any = SimpleTrainer
    if case in ("replicas", "split"):
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
        )
        devices = ["CPU:0", "CPU:1"]
        trainer = functools.partial(SyncMultiGPUTrainer, devices=devices)
    elif case.startswith("workers"):
        trainer = MultiWorkerTrainer
    trainer(config_of(case, directory, workers)).train()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int((*sys.argv[3:], 2)[0]))
