"""One model of every layer, trained on two logical CPU devices, resumed, and asked.

python every_layer_program.py DIRECTORY
"""

# ruff: noqa: E402 - devices are made before anything uses TensorFlow

from __future__ import annotations

import math
import shutil
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "support"), str(TESTS / "unit" / "nn")]
from test_layer_laws import CASES, PURE, WIDE, WITHOUT_WEIGHTS

import towerpack.nn as nn
from scaling import SCALE, sample
from small_training import assert_same, config
from towerpack.callbacks import ModelSaver
from towerpack.checkpoint import load_checkpoint
from towerpack.dataflow import BatchData, DataFromArrays
from towerpack.inference import Predictor
from towerpack.training import SyncMultiGPUTrainer

X = np.random.default_rng(3).normal(size=(16, 144)).astype(np.float32)
ARGUMENTS = {"ConcatWith": [tf.zeros([1])], "FixedUnPooling": [2], "Maxout": [2], "MaxPooling": [2]}
ARGUMENTS["AvgPooling"] = [2]
SPECS = [tf.TensorSpec([None, X.shape[1]], tf.float32, "x")]


def every() -> dict[str, tuple[Any, tuple[int, ...]]]:
    layers = {name: (case.build, case.shape) for name, case in CASES.items()}
    if SCALE < 1:  # those without weights have nothing to resume or to share
        return {name: layers[name] for name in sample(list(layers), at_least=5)}
    layers |= {kind: (layer, WIDE) for kind, (layer, _) in PURE.items()}
    for name in sorted(WITHOUT_WEIGHTS - {"ConcatWith", "PositionalEncoding"}):  # in PURE
        layer, arguments = getattr(nn, name), ARGUMENTS.get(name, [])
        layers[name] = (lambda x, f=layer, a=arguments: f("a", x, *a)), WIDE
    return layers


def build(x: tf.Tensor) -> tf.Tensor:
    rows: Any = tf.zeros([tf.shape(x)[0]])
    for name, (layer, shape) in every().items():
        with nn.scope(name.replace(" ", "_")):
            if name == "SpectralNorm":
                rows *= tf.reduce_mean(layer(tf.compat.v1.get_variable("weight", shape)))
                continue
            part = tf.reshape(x[:, : math.prod(shape[1:])], [-1, *shape[1:]])
            y = layer(part)
            rows += tf.reduce_mean(tf.square(y - 0.5), range(1, y.shape.rank))
    return tf.reduce_mean(tf.square(nn.expose("rows", rows)))


MODEL = (SPECS, build, lambda: keras.optimizers.SGD(1e-2, momentum=0.9))


def train(run_dir: Path) -> dict[str, np.ndarray]:
    flow = BatchData(DataFromArrays(X), 4)
    parts = config(
        run_dir, [ModelSaver()], model=MODEL, dataflow=flow, max_epoch=2, steps_per_epoch=2
    )
    trainer = SyncMultiGPUTrainer(parts, ["CPU:0", "CPU:1"])
    trainer.train()
    return trainer.get_weights()


def main(where: Path) -> None:
    whole = train(where / "whole")
    shutil.copytree(where / "whole", where / "parts")
    shutil.rmtree(where / "parts/checkpoints/step-00000004")
    half = load_checkpoint(where / "parts").model
    assert_same(train(where / "parts"), whole)
    # A bias of keys moves all scores alike, and Keras keeps states of layers that draw nothing.
    idle = ("key/bias", "seed_generator_state")
    same = [n for n in whole if (whole[n] == half[n]).all() and not n.endswith(idle)]
    assert not same, same
    assert all(np.isfinite(value).all() for value in whole.values())
    predict = Predictor(MODEL, where / "parts", outputs="rows")
    assert np.isfinite(predict(X)).all()
    np.testing.assert_allclose(predict(X[:5]), predict(X)[:5], rtol=1e-4)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
