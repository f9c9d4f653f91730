"""Replicas whose gradients are averaged by collectives in a ring, as on GPUs, and without.

python ring_program.py DIRECTORY
"""

# ruff: noqa: E402 - devices are made before anything uses TensorFlow

from __future__ import annotations

import sys
from pathlib import Path
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))
from small_training import Model, config
from towerpack.callbacks import ModelSaver
from towerpack.checkpoint import load_checkpoint
from towerpack.training import SyncMultiGPUTrainer
from towerpack.training.loop.executor import Executor
from towerpack.training.trainers import multi_gpu

DEVICES = ["CPU:0", "CPU:1"]
collective: list[bool] = []
compile_executor = Executor.compile


def compile(self: Executor) -> None:
    compile_executor(self)
    graph = self._run.get_concrete_function().graph.as_graph_def()
    functions = [graph.node, *(function.node_def for function in graph.library.function)]
    collective.append(any(n.op == "CollectiveReduceV2" for nodes in functions for n in nodes))


def trained(directory: Path, precision: str) -> dict[str, np.ndarray]:
    multi_gpu._mirrored_strategy.cache_clear()
    model = Model(lambda: keras.optimizers.Adam(0.01))
    settings = config(directory, [ModelSaver()], model=model, precision=precision)
    SyncMultiGPUTrainer(settings, DEVICES).train()
    return load_checkpoint(directory).model


if __name__ == "__main__":
    Executor.compile = compile
    for precision, tolerance in [("float32", 1e-6), ("float16", 1e-3)]:
        folder = Path(sys.argv[1], precision)
        expected = trained(folder / "one", precision)
        with mock.patch.object(tf.distribute, "ReductionToOneDevice", lambda: None):
            weights = trained(folder / "ring", precision)
        for name, value in expected.items():
            np.testing.assert_allclose(weights[name], value, rtol=tolerance, atol=tolerance)
    print("COLLECTIVE", collective)
